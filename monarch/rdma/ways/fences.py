"""The fences of this process, by device: each marks the GPU work queued before its last message.

Processes that read its memory follow the fences, so that a reader that has an endpoint's answer
sees the results of the endpoint's GPU work. A process has no fence until somebody maps its memory.
"""

from __future__ import annotations

import logging
import os

from monarch.rdma.memory.gpu import gpu
from monarch.wire import payload

_log = logging.getLogger("monarch.rdma")


def handle_of(device: int) -> bytes:
    """Return the handle by which another process opens the device's fence.

    From now on the fence is set before each message.
    """
    fence = gpu().fences.get(device)
    if fence is None:
        # If two threads make a fence at once, `setdefault` keeps one for both.
        fence = gpu().fences.setdefault(device, gpu().fence(device))
    if set_all not in payload.before_dump:
        payload.before_dump.append(set_all)
    return fence.handle()


def set_all() -> None:
    """Set all fences behind the work that the calling thread has queued."""
    fences = gpu().fences
    for device, fence in list(fences.items()):
        try:
            fence.set()
        except RuntimeError as error:
            # The device is lost, with all its memory; the message may be about that.
            fences.pop(device, None)
            _log.debug("GPU %s marks nothing any longer: %s", device, error)


def _forget() -> None:
    """Drop the fences in a forked child, which cannot use its parent's devices."""
    gpu().fences.clear()


os.register_at_fork(after_in_child=_forget)
