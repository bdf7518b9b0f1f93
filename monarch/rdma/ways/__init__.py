"""The ways to memory of another process, and which one a transfer takes.

What to open:

    choice               which way a transfer takes; a new way is named there
    backend              the contract of a way
    own_process          the way within a process
    process_vm           the way within a host
    tcp, tcp_server      the way over TCP: the reader's end, the owner's end
    streams              the sockets of that way: tickets, proofs, bytes
    verbs/               the way by an RDMA device
    cuda_ipc, fences     the way to a GPU of this host; the work its GPU must finish first
    availability         which ways this machine has, and warnings
    asking, serving      requests to an owner; its answers
"""
