"""Programs that a host runs for a person (``monarch exec``, ``shell``, detached runs); its ports.

What to open:

    host_programs, running_program   the host's side: all programs; one of them
    remote_program                   the client's side, and the streams of a process
    guard                            ends a program and all that it started, even if the agent
                                     dies
    port_forward, port_connections   a local port that leads to a host's; its connections at the
                                     host
    byte_flows                       bytes of a descriptor, and flow control for them
"""
