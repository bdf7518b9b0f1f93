"""Actors in their process: each has a cell that runs its messages, one after another.

What to open:

    cell_table                  which actor a message is for; calls that come too early or too late
    actor_cell                  how an actor takes and runs a message
    cell_runners, actor_loops   actors on threads and on loops; the loops
    cell_answers                the answers to callers
    undelivered                 messages that could not be delivered
    cell_work                   an actor's work besides messages, and endpoints that run as tasks
    hooks                       how an actor's hooks are run
    endpoint_spec               the endpoints of a class
    reload_round                `__reload__` of all actors of a process
    ring_watch                  waits that last; with `monarch/core/rings.py`
    call_watch                  the interface of a debugger that holds calls
    loans                       arguments that are lent to a call
    actor_log                   the actor's name in log records
"""
