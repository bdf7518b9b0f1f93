"""Remote functions stay on the device of their worker.

The device is a thread's own choice, and operations that come later are of that thread, too: whoever
chose another in a remote function would move them all. So ``torch.cuda.set_device`` is refused
there, and nowhere else in the process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

_NOT_A_WORKER = -1
# A context's own: what a stream's thread does runs in a copy of that of the worker.
_held: ContextVar[int | None] = ContextVar("device of the worker", default=_NOT_A_WORKER)


@contextlib.contextmanager
def staying_on(device: int | None) -> Iterator[None]:
    """Within, ``torch.cuda.set_device`` of another device than this one raises ``ValueError``.
    ``None`` is a worker without one."""
    token = _held.set(device)
    try:
        yield
    finally:
        _held.reset(token)


def watch_set_device() -> None:
    """Have ``torch.cuda.set_device`` of this process ask whether it may. More than once does no
    harm."""
    chosen = torch.cuda.set_device
    if hasattr(chosen, "asks_worker"):
        return

    @functools.wraps(chosen)
    def set_device(device: Any) -> None:
        own = _held.get()
        if own != _NOT_A_WORKER and _index(device) != own:
            which = "no devices" if own is None else f"only devices [{own}]"
            raise ValueError(
                f"torch.cuda.set_device({device!r}) in a remote function: {which} are available to "
                "monarch worker in this proc, whose later operations would move with it. Leave the "
                "device as it is; `with torch.cuda.device(...)` changes it for a block"
            )
        chosen(device)

    set_device.asks_worker = True  # type: ignore[attr-defined]
    torch.cuda.set_device = set_device


def _index(device: Any) -> Any:
    return device if isinstance(device, int) else torch.device(device).index
