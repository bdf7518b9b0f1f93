"""The switch of all ranks to new code: a two-phase commit behind a barrier, as state machines.

No threads, messages or clocks here. An event goes in, with the time; the effects to carry out come
back as data. ``monarch.runtime.workspace.code_switch`` carries them out.

- ``table``: the parties, their states, and which event leads from which state to which.
- ``coordinator``: the process that drives a switch. That is the author of a push, or the owner of
  the procs that takes its place when the author has died (cooperative termination).
- ``participant``: a process that switches. That is an owner or a proc, which has its own procs
  follow.
- ``follower``: whose orders count for a participant, and for a host; ``succession``: who orders
  next.
- ``barrier``: one barrier, as a participant knows it.

What to open, by what is to be changed:

- how all ranks switch at one moment: `table.py`, `participant.py` (decides),
  `monarch/runtime/workspace/code_switch/driver.py`, `monarch/runtime/procs/fences.py`
- how long a push may hold anybody up: `coordinator.py`, `barrier.py`,
  `monarch/runtime/links/waiting_switches.py`
"""
