"""All processes switch to other code at one moment, or none of them does: a two-phase commit.

Decisions are made in ``monarch.core.code_switch``; here are the threads and messages around it.

- ``coordinating``: drives a switch over its owners (see ``owner``), for the author of a push.
- ``driver``: the orders that a process is given, and what happens to it meanwhile.
- ``actions``: how it carries out what was decided, itself and through the procs that it owns.
- ``busy_actors``: the actors that a switch waits for, in one line for people.
- ``open_order``: an order that waits for its answer.
- ``proc_orders``: what a process sends to its procs, and to their hosts.
- ``orders``: what arrives from other processes.
- ``fencing``: what a participant does to its mailboxes, its spawns and what it sends.
- ``author_lost``: brings a switch to its end whose author has died.

What to open, by what is to be changed:

- what becomes of a push whose author dies: `author_lost.py`, `monarch/runtime/workspace/lease.py`
"""
