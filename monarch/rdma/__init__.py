"""One-sided memory: buffers that other processes read and write without their owner's help.

What to open, by what is to be changed:

- what programs call: `buffer.py`, `action.py`; how what they begin is done: `transfers.py`
- what may be registered, and when that ends: `memory.py`, `registry.py`, `table.py`
- memory of GPUs: `gpu.py`, `device_memory.py`
- which way a transfer takes: `ways.py`; a new way: a class like `backend.py` says, named there
- published weights: `state_dict.py`, the holders of each version `directory.py`, the plan
`reshard.py`
- the ways: `process_vm.py`, `tcp.py` and `tcp_server.py`, `verbs/`, `cuda_ipc.py`
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
