"""The ``monarch`` command.

What to open, by what is to be changed:

- the options and help of a command: `commands.py`, `sync/commands.py`; what it does: the file that
  it imports there
- how hosts are asked for what they have, and dead ones found: `monarch/runtime/hosts/asking.py`
- what Ctrl-C, SIGTERM and SIGHUP do: `interrupts.py`
- which programs use an allocation, and the question before it ends: `users.py`
- what a command does where its output cannot be read: closed or full standard streams: `streams.py`
"""
