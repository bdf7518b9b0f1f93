"""All processes switch to other code at one moment, or none of them does: a two-phase commit.

``monarch.core.code_switch`` decides; here are the threads and messages around it.

What to open:

    proposing                 a push, from its author to the owners: all prepare, then each switches
    remote_owner              an owner that is another program
    leading                   an owner drives its own switch
    host_files                the files of a push on hosts: shown, dropped or taken back
    driver                    takes orders, and feeds them and other events to a participant
    open_order                an order that waits for its answer
    actions                   carries out the participant's decisions, here and in its procs
    fencing                   a participant's fences in its mailboxes, its spawns and its sends
    audits                    the searches for old code after a switch
"""
