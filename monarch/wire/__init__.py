"""Messages to frames and back. Pure: no sockets, no clocks, no threads.

What to open:

    codec                       messages to frames, and back
    layout                      how the pieces of a message lie in memory
    message/                    every message of the protocol
    payload, pickler            what of a value is a buffer; what cloudpickle keeps of code
    unsendable                  which argument cannot be pickled, and what in it
    by_value                    classes that travel whole
    tensors                     torch tensors as pickles with buffers
    large_bytes                 large ``bytes``, made in one copy
    address, host_url           addresses of processes, actors and ports; of host agents
    keys                        all keys of a job, from its secret
    hold, host_code, bulletin   held calls, code on a host, and news of a host, as data
"""
