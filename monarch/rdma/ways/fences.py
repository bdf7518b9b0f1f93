"""The fences of this process, by device: what its GPUs were given to do before its last message.

Others that read its memory follow them, so that what an endpoint has begun is in what they read
once they have its answer. A process of whose GPU nothing is mapped elsewhere has none.
"""

from __future__ import annotations

import logging
import os

from monarch.rdma.memory.gpu import gpu
from monarch.wire import payload

_log = logging.getLogger("monarch.rdma")


def handle_of(device: int) -> bytes:
    """The handle by which another process opens the fence of a device; the fence is kept set from
    now on."""
    fence = gpu().fences.get(device)
    if fence is None:
        # Where two threads come here at once, what one of them has made is set, too.
        fence = gpu().fences.setdefault(device, gpu().fence(device))
    if set_all not in payload.before_dump:
        payload.before_dump.append(set_all)
    return fence.handle()


def set_all() -> None:
    """Behind all that the calling thread has given the devices to do."""
    fences = gpu().fences
    for device, fence in list(fences.items()):
        try:
            fence.set()
        except RuntimeError as error:
            # The device is lost, and all its memory: what is sent now may be the news of it.
            fences.pop(device, None)
            _log.debug("GPU %s marks nothing any longer: %s", device, error)


def _forget() -> None:
    """A forked child has no part in its parent's devices."""
    gpu().fences.clear()


os.register_at_fork(after_in_child=_forget)
