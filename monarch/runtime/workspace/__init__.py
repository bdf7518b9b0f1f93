"""Where the runtime meets ``monarch_sync``: replicas on hosts, reloads in processes.

What to open, by what is to be changed:

- how a process prepares new code, and what it says of it: `preparing.py`, `reload_words.py`
- how an actor pushes: `session.py`, `monarch/runtime/workspace/code_switch/remote_owner.py`
"""
