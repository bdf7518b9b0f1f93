"""Answers of procs and host agents to questions about themselves.

What to open:

    live_state                       a process at this moment: actors, calls in hand, queues, waits
    live_stacks, py_spy              stacks, as the process tells them; as py-spy reads them
    flight_record                    the last collectives, by torch's flight recorder
    process_groups                   torch's process groups, and their end by force
    machine_state                    what the kernel and the GPUs' driver say
    drain                            the last events, as rows; with `monarch/core/event_ring.py`
    proc_desk, host_desk             the answers of a process; of a host agent, which also keeps
                                     rows of dead procs
    door                             a proc's door for debuggers; `breakpoint()`
    holds                            the held calls of a process
    held_call, held_pdb, held_text   one held call; its debugger; that one's input and output
    hold_book                        the held calls that a host agent or a client knows of
    looks                            looks into a proc that runs
    break_places                     breakpoints by file and line
    stop_at                          stops an actor that runs
    dap_tunnel                       debugpy, for an editor
    environment                      the environment of a process, seen and changed
    later_procs                      variables and breakpoints for procs that start later
"""
