"""The ways to remote memory that this machine offers, and the warnings about slow ways."""

from __future__ import annotations

import functools
import sys
import warnings

from monarch.config import upstream_value


class RDMATcpFallbackWarning(UserWarning):
    """Data is sent over TCP, since no RDMA device reaches the process that owns the memory."""


class RDMAReadTransferWarning(UserWarning):
    """Data that is read into a GPU is staged in this host's memory."""


class RDMAWriteTransferWarning(UserWarning):
    """Data that is written from a GPU is staged in this host's memory."""


def is_ibverbs_available() -> bool:
    """Whether there is an RDMA device with a library for it, and RDMA is not disabled.

    ``configure(rdma_disable_ibverbs=True)`` disables it.
    """
    return not upstream_value("rdma_disable_ibverbs") and _has_device()


@functools.cache
def _has_device() -> bool:
    # Imported when used: it looks for libraries.
    from monarch.rdma.ways.verbs.installed import find_library

    return sys.platform.startswith("linux") and find_library() is not None


def get_rdma_backend() -> str:
    """Return how other hosts are reached: ``"ibverbs"``, ``"tcp"``, or ``"none"``.

    Processes of one host use system calls. ``RDMABuffer.backend`` is the way to one buffer.
    """
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if upstream_value("rdma_allow_tcp_fallback") else "none"


def is_rdma_available() -> bool:
    """Call ``is_ibverbs_available``. Deprecated; ``get_rdma_backend`` says more."""
    warnings.warn(
        "is_rdma_available is deprecated: use is_ibverbs_available or get_rdma_backend",
        DeprecationWarning,
        stacklevel=2,
    )
    return is_ibverbs_available()
