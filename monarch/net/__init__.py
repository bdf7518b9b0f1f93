"""Bytes between processes: an I/O loop, and transports with one contract.

What to open:

    transport                        the contract of a transport, and what all of them do alike
    transports                       all transports of a process; the URL says which
    unix_transport,                  within a machine: Unix stream sockets
    unix_connection, unix_socket
    zmq_transport                    between machines: ZeroMQ over TCP
    gate                             admission by the job's secret
    inproc_transport                 within a process, for tests
    framing                          frames on a byte stream
    cork                             write coalescing: small messages share a write
    loop, io_loop                    the interface of an I/O loop; the loop
    poller                           epoll, or its substitute on other systems
    poll_turn, guest                 threads that poll in the loop's place
    lent_selector                    an asyncio loop that polls in its place
    eagerness                        whether to spin for a moment before a sleep
    put_off                          signal handlers that wait for the loop's callbacks
    segment, segment_door            shared memory; where segments of others arrive
    gateway                          a cluster behind one reachable host
    tunnel                           many connections over one stream; the end at the gateway
    resumed_stream                   a stream that outlives its connection
    machine, identifiers             which machine and user this is; new uids and job secrets
    rare_log                         rate-limited warnings
"""
