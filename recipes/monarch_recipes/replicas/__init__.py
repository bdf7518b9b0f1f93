"""The parts of `fault_tolerant`: they keep replica groups training when processes die.

What to open, by what you change:

- when a replica group counts as hung: `groups.py`
- a bug of TorchFT: `torchft_cures.py`

Begin with `controller`: it has the rules. Around it:

    group, groups         one replica group; all of them: starts, restarts, hangs
    placement, preload    hosts of the groups; imports of the template process
    lighthouse            TorchFT's lighthouse, and the keeper that starts it again
    membership, timeouts  a process joins its group and the quorum; how long members wait
    meeting               whom a group waits for before it makes a step
    hold                  all groups wait for newer code
    finish                evaluations, the last checkpoint, groups that come late
    event_log, recovery   metrics, faults and fingerprints; the cost of each fault
    discards              steps that are discarded in a row for one reason
    chaos                 injected faults
    messages, client      messages between controller, trainers and client; the client's part
"""
