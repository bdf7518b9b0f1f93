"""Programs that a host runs for a person (``monarch exec``, ``shell``, detached runs); its ports.

What to open:

    host_programs, running_program   the host's side: all programs; one of them
    remote_program                   the client's side
    stream_router                    which side of a process a message is for
    guard                            how a program and all that it starts is ended, even if the
                                     agent dies
    port_forward, port_connections   a local port that leads to a host's; its connections at the
                                     host
    byte_flows                       bytes of a descriptor, and flow control for them
"""
