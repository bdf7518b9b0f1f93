"""The procs of one attempt at a run, which may lose any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from monarch.actor import HostMesh, ProcMesh
from monarch.config import configured
from monarch.runs.recovery import noticing_losses

__all__ = ["procs_for_attempt"]

_GRACE_SECONDS = 10.0
_STUCK_SECONDS = 1.0  # for ranks that wait for one that is lost; there is nothing to save


@contextmanager
def procs_for_attempt(
    hosts: HostMesh, procs_per_host: int, name: str, preload: Sequence[str]
) -> Iterator[ProcMesh]:
    """New procs, stopped in the end; of losses within becomes what ``noticing_losses`` says."""
    procs = hosts.spawn_procs({"procs": procs_per_host}, name=name, preload=preload)
    grace_seconds = _STUCK_SECONDS
    try:
        with noticing_losses():
            yield procs
        grace_seconds = _GRACE_SECONDS
    finally:
        with configured(stop_timeout_seconds=grace_seconds, cleanup_timeout_seconds=1.0):
            procs.stop().get()
