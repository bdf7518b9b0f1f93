"""Memory that other processes may read and write: registered, described, found again.

What to open:

    memory               what may be registered
    registry             registrations, and when they end
    table, byte_locks    what other processes see of registrations; the locks of writers
    region               memory of another process, as it is described here
    layout               where the bytes of a tensor lie
    gpu, device_memory   what is used of CUDA; copies between GPUs, and to this host's memory
    workers              threads that move bytes
"""
