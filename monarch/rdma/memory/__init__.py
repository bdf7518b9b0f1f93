"""Memory that other processes may read and write: its registration and its description.

What to open:

    memory               memory of this process: tensors, arrays, buffers
    registry             registrations, and when they end
    table, byte_locks    the registrations as other processes see them; the locks of writers
    region               memory of another process, as it is described here
    layout               where the bytes of a tensor lie
    gpu, device_memory   the used part of CUDA; copies between GPUs, and to this host's memory
    workers              threads that move bytes
"""
