"""All processes switch to other code at one moment, or none of them does: a two-phase commit.

Decisions are made in ``monarch.core.code_switch``; here are the threads and messages around it.

What to open:

    coordinating              drives a switch over its owners, for the author of a push
    owner, remote_owner       an owner, as a push asks it; one that is another program
    driver                    feeds orders and events of this process to a participant
    orders, open_order        orders that arrive; one that waits for its answer
    actions                   carries out what the participant decides
    proc_orders               what a process sends to its procs, and to their hosts
    fencing                   what a participant does to its mailboxes, its spawns and what it sends
    busy_actors               the actors that a switch waits for, in one line for people
    audits                    what still runs old code after a switch
    author_lost, succeeding   the end of a switch whose author has died; which owner leads it
"""
