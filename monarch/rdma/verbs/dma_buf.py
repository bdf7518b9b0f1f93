"""Memory of a GPU as a descriptor that other devices understand: a dma-buf, by CUDA's driver."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from monarch.rdma.verbs.library import MemoryKeys, VerbsDevice, VerbsFailed

_DMA_BUF_FD = 1
_PEER_MEMORY = "/sys/module/nvidia_peermem"


def register_gpu(device: VerbsDevice, address: int, length: int, driver: Any = None) -> MemoryKeys:
    """Register memory of a GPU: by the kernel's peer memory where that is loaded, else exported.

    torch's memory can be exported where ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` is set
    before CUDA is used.
    """
    if driver is None and os.path.exists(_PEER_MEMORY):
        return device.register(address, length)
    fd, base = export(address, driver or _driver())
    try:
        return device.register_dma_buf(fd, address - base, address, length)
    finally:
        os.close(fd)  # The registration has its own.


def export(address: int, driver: Any) -> tuple[int, int]:
    """A descriptor of the whole allocation at ``address``, and where that begins."""
    base, size, fd = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int(-1)
    _check(driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), _at(address)))
    page = os.sysconf("SC_PAGE_SIZE")
    length = -(-size.value // page) * page
    _check(
        driver.cuMemGetHandleForAddressRange(
            ctypes.byref(fd), _at(base.value), ctypes.c_size_t(length), _DMA_BUF_FD,
            ctypes.c_ulonglong(0),
        )
    )  # fmt: skip
    return fd.value, base.value


def _at(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(address)


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise VerbsFailed(str(error)) from None


def _check(status: int) -> None:
    if status:
        raise VerbsFailed(f"CUDA's driver cannot export the memory (error {status})")
