"""The ``monarch`` command.

What to open, by what is to be changed:

- how hosts are asked for what they have, and dead ones found: `monarch/runtime/hosts/asking.py`
- who uses an allocation, and who is asked before it ends: `users.py`
- what a command does where nobody can read it: closed or full standard streams: `streams.py`
"""
