"""Programs that a host runs for a person (``monarch exec``, ``shell``, detached runs); its ports.

What to open:

    host_programs, running_program   the host's side: all programs; one of them
    remote_program                   the client's side
    guard                            ends a program and all that it started, even if the agent
                                     dies
    port_forward                     a local port that leads to a host's
    byte_flows, byte_streams         bytes of a descriptor, and flow control for them; the streams
                                     of a process
    streamed_socket                  a socket at one end of a stream: of a forwarded connection, or
                                     of an editor's session
"""
