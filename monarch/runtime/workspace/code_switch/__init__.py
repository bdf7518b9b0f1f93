"""All processes switch to other code at one moment, or none of them does: a two-phase commit.

What is decided is in ``monarch.core.code_switch``; here are the threads and messages around it.

- ``coordinating``: drives a switch over its owners (see ``owner``), for whoever pushes.
- ``driver``: a process's part in it, and its part for the procs that it owns.
- ``orders``: what arrives from other processes.
- ``fencing``: what a participant does to its mailboxes, its spawns and what it sends.
- ``author_lost``: brings a switch to its end whose author has died.

What to open, by what is to be changed:

- what becomes of a push whose author dies: `author_lost.py`, `monarch/runtime/workspace/lease.py`
"""
