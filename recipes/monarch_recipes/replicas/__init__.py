"""The parts of `fault_tolerant`: they keep replica groups training when processes die.

Which file to open for a change:

- when a replica group counts as hung: `groups.py`
- a bug of TorchFT: `torchft_cures.py`

Begin with `controller`, whose docstring has the rules. The other files:

    group, groups         one replica group; all of them: starts, restarts, hangs
    placement, preload    the hosts of the groups; imports of the template process
    lighthouse            TorchFT's lighthouse, and the keeper that restarts it
    membership            joins a process to its group and the quorum
    meeting               which groups a group waits for before it makes a step
    hold                  lets all groups wait for newer code
    finish                evaluations, the last checkpoint, groups that come late
    event_log, recovery   metrics, faults and fingerprints; the cost of each fault
    discards              counts discarded steps in a row with the same reason
    chaos                 injected faults
    messages, client      messages between controller, trainers and client; the client's part
"""
