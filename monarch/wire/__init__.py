"""Messages to frames and back. Pure: no sockets, no clocks, no threads.

What to open:

    codec                       messages to frames, and back
    layout                      the places of a message's pieces in memory
    message/                    every message of the protocol
    payload, pickler            values as pickles with buffers; cloudpickle with file names
    unsendable                  which argument cannot be pickled, and what in it
    by_value                    classes that are sent by value
    tensors                     torch tensors as pickles with buffers
    large_bytes                 large ``bytes``, made in one copy
    address, host_url           addresses of processes, actors and ports; of host agents
    keys                        all keys of a job, from its secret
    hold, host_code, bulletin   held calls, code on a host, and news of a host, as data
"""
