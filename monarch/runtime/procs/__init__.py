"""The agent in each proc, and what stands still there while all switch to new code.

What to open:

    proc_agent       makes actors, brings them messages, ends them
    supervisor       supervision in one process; decided in `monarch/core/supervision.py`
    proc_config      what a proc is given at birth
    binding          which CPUs and memory a proc may use
    fences           the barrier of a code switch
    spawn_gate       spawns that wait while files change
    keeps_all        of procs that are dropped, the client alone ends any
    kept_spawns      the orders by which actors are made again in a new proc
    seen_imports     what procs import, for their host to have ready
    zygote_process   the process of a zygote: started, ended
"""
