"""The runtime's use of ``monarch_sync`` and ``monarch_reload``: replicas on hosts, reloads in
processes.

What to open:

    session          how a program or an actor pushes; with `code_switch/remote_owner.py`
    replica_agent    a host's replica, which answers the messages of a push; which author may push
    local_reload     a change of code in a process, step by step, and its texts
    preparing        how new code is tried before it runs
    shared_trial     one trial for all ranks of a host
    reload_plan      messages about a generation: the plan, the outcome
    imported_texts   the code that a process runs, where imports are not followed
    project_roots    which import folders a process follows
    code_switch/     the switch of all processes at once
    pushing/         the author's side of a push
    packages/        packages that are pushed with a workspace
"""
