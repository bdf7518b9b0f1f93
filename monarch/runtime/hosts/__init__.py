"""The host agent: makes, watches, relays to and ends the procs of one machine.

What to open:

    host_service                  all parts that answer at a host's address
    host_agent, host_proc         the agent; its record of a proc
    host_door                     admits one client at a time, and clears up after it
    host_link                     a client's attachment to a host
    templates, launcher           how procs are made; the zygote that forks them:
                                  `monarch/runtime/entry/zygote.py`
    waiting_spawns                procs that wait for a state of the workspace
    replacements                  procs that are replaced by new ones; with
                                  `monarch/runtime/procs/kept_spawns.py`
    proc_watchers                 reports that a proc is up, was replaced, or has ended
    proc_stops                    how procs are asked to end, and killed
    held_memory                   memory of procs that survives them
    hang_watch                    procs that are alive but do not answer
    relay                         the host's part in a broadcast tree
    hosted_workspace              the host's workspace, as the agent sees it
    bulletins                     news for listeners, such as
                                  `monarch/cli/sync/bulletin_listener.py`
    host_desk                     the answers of a host agent; rows of dead procs
    end_notice                    the announced end of a host
    idle_watch                    `--idle-timeout`
    asking                        how hosts are asked for their state, and dead ones found
    agent_process                 the process of an agent, as every kind of job starts it
    starter                       how an agent is started at the far end of a login
    bundle_seeker, bundle_place   a host without monarch waits for a bundle; where bundles are kept
    directory                     folders for Unix sockets

The modules that a host imports ahead: `monarch/runtime/procs/seen_imports.py`,
`monarch/runtime/entry/learned_modules.py`. Procs of `this_host()` with a `$WORKSPACE_DIR` of their
own: `monarch/runtime/client_agent.py`, `monarch/runtime/workspace/pushing/local_replicas.py`.
"""
