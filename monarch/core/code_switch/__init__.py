"""The switch of all ranks to new code: a two-phase commit behind a barrier, as state machines.

No threads, messages or clocks here. An event goes in, with the time; the effects to carry out come
back as data. ``monarch.runtime.workspace.code_switch`` carries them out.

What to open:

    table         the parties, their states, and which event leads from which state to which
    proposal      the author of a push: has all owners prepare, and then each switch
    coordinator   the owner of procs, which drives the switch; how long a fence may hold actors up
    participant   a process that switches: an owner or a proc, which has its own procs follow
    round         one round of votes
    barrier       one fence, as a participant knows it
    effects       the effects, as data

Elsewhere: `monarch/runtime/workspace/code_switch/driver.py` (feeds events in),
`monarch/runtime/procs/fences.py`, `monarch/runtime/links/waiting_switches.py`.
"""
