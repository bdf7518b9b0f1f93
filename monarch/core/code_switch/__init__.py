"""The switch of all ranks to new code: a two-phase commit behind a barrier, as state machines.

There are no threads, messages or clocks here. A method gets an event, with the time, and returns
the effects to carry out, as data. ``monarch.runtime.workspace.code_switch`` carries them out.

What to open:

    table         the parties, their states, and which event leads from which state to which
    proposal      the author of a push: asks all owners to prepare, and then each to switch
    coordinator   the owner of procs, which drives the switch; how long a fence may delay actors
    participant   a process that switches: an owner or a proc, with the procs that it spawned
    round         one round of votes
    barrier       one fence, as a participant sees it
    effects       the effects, as data

Elsewhere: `monarch/runtime/workspace/code_switch/driver.py` (feeds events in),
`monarch/runtime/procs/fences.py`, `monarch/runtime/links/waiting_switches.py`.
"""
