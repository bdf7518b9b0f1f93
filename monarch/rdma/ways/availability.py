"""Which ways to remote memory this machine offers, and the warnings about slow ones."""

from __future__ import annotations

import functools
import sys
import warnings

from monarch.config import upstream_value


class RDMATcpFallbackWarning(UserWarning):
    """Data goes over TCP, as no RDMA device leads to its owner."""


class RDMAReadTransferWarning(UserWarning):
    """Data that is read is staged in this host's memory on its way to a GPU."""


class RDMAWriteTransferWarning(UserWarning):
    """Data that is written is staged in this host's memory on its way from a GPU."""


def is_ibverbs_available() -> bool:
    """Whether there is an RDMA device, and a library that opens it, and
    ``configure(rdma_disable_ibverbs=True)`` has not been called.
    """
    return not upstream_value("rdma_disable_ibverbs") and _has_device()


@functools.cache
def _has_device() -> bool:
    # Imported when used: it looks for libraries.
    from monarch.rdma.ways.verbs.installed import find_library

    return sys.platform.startswith("linux") and find_library() is not None


def get_rdma_backend() -> str:
    """How other hosts are reached: ``"ibverbs"``, ``"tcp"``, or ``"none"``. Within a host it is
    always by system calls; ``RDMABuffer.backend`` says what it is for one buffer.
    """
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if upstream_value("rdma_allow_tcp_fallback") else "none"


def is_rdma_available() -> bool:
    """Deprecated: ``is_ibverbs_available`` says this, ``get_rdma_backend`` more."""
    warnings.warn(
        "is_rdma_available is deprecated: use is_ibverbs_available or get_rdma_backend",
        DeprecationWarning,
        stacklevel=2,
    )
    return is_ibverbs_available()
