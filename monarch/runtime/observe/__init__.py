"""Answers of procs and host agents to questions about themselves.

What to open:

    live_state             a process at this moment: actors, calls in hand, queues, waits
    live_stacks, py_spy    stacks, read by the process itself; by py-spy
    flight_record          the last collectives, by torch's flight recorder
    process_groups         torch's process groups, and their end by force
    machine_state          the machine's state, from the kernel and the GPUs' driver
    drain                  the last events, as rows; with `monarch/core/event_ring.py`
    proc_desk              the answers of a process; a host agent's, which also keeps rows of dead
                           procs: `monarch/runtime/hosts/host_desk.py`
"""
