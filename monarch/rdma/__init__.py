"""One-sided memory: buffers that other processes read and write without their owner's help.

What to open:

    buffer               `RDMABuffer`
    action               `RDMAAction`: several transfers as one
    transfers, workers   how a transfer is begun and waited for; threads that move bytes
    memory               what may be registered
    registry             registrations, and when they end
    table, byte_locks    what other processes see of registrations; the locks of writers
    region               memory of another process, as it is described here
    layout               where the bytes of a tensor lie
    ways                 which way a transfer takes; a new way is named there
    backend              the contract of a way
    own_process          the way within a process
    process_vm           the way within a host
    tcp, tcp_server      the way over TCP: the reader's end, the owner's end
    streams              the sockets of that way: tickets, proofs, bytes
    verbs/               the way by an RDMA device
    cuda_ipc, fences     the way to a GPU of this host; what its GPU has to have done before
    gpu, device_memory   what is used of CUDA; copies between GPUs, and to this host's memory
    availability         which ways this machine has, and warnings
    asking, serving      requests to an owner; its answers
    state_dict           `SharedStateDict`: published weights
    directory            the holders of each version of them
    slab                 their memory
    reshard, shards      the plan of copies to another layout; tensors as it sees them
"""

from __future__ import annotations

from monarch.errors import RemoteMemoryError
from monarch.rdma.action import RDMAAction
from monarch.rdma.availability import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.state_dict import SharedStateDict, Subscription

__all__ = [
    "RDMAAction",
    "RDMABuffer",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "RemoteMemoryError",
    "SharedStateDict",
    "Subscription",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]
