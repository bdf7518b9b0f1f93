"""The agent in each proc, and its parts.

What to open:

    proc_agent       makes actors, delivers their messages, ends them
    supervisor       supervision in one process; decided in `monarch/core/supervision.py`
    proc_config      the configuration that a new proc gets
    binding          which CPUs and memory a proc may use
    fences           the barrier of a code switch
    spawn_gate       spawns that wait while files change
    keeps_all        outside of the client, dropped procs are not ended
    kept_spawns      the orders by which actors are made again in a new proc
    seen_imports     the modules that procs import, for their host to import ahead
    zygote_process   the process of a zygote: started, ended
"""
