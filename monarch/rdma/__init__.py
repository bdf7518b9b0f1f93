"""One-sided memory: buffers that other processes read and write without their owner's help.

What to open:

    buffer       `RDMABuffer`
    action       `RDMAAction`: several transfers as one
    transfers    how a transfer is started and waited for
    memory/      registered memory: its table, its layout, GPUs
    ways/        the ways by which bytes move: in a process, a host, TCP, RDMA, between GPUs
    weights/     `SharedStateDict`: published weights
"""

from __future__ import annotations

from monarch.errors import RemoteMemoryError
from monarch.rdma.action import RDMAAction
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.ways.availability import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch.rdma.weights.state_dict import SharedStateDict, Subscription

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
