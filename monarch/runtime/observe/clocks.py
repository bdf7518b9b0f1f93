"""The timeouts of torch's process groups, which stand while a rank of the program is held."""

from __future__ import annotations

import datetime
import logging
import sys
from typing import Any

_log = logging.getLogger("monarch.proc")

_HELD = datetime.timedelta(hours=24)

_before: dict[Any, datetime.timedelta] = {}


def hold_process_groups(is_held: bool) -> None:
    """Give all groups of this process a day, or what they had before.

    Work that was issued before keeps its timeout.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        _before.clear()
        return
    try:
        for backend in _backends():
            if is_held:
                _before.setdefault(backend, backend.options._timeout)
                backend._set_default_timeout(_HELD)
            elif backend in _before:
                backend._set_default_timeout(_before.pop(backend))
    except Exception as error:
        # Another backend than gloo and NCCL: its collectives keep their time.
        _log.warning("the timeouts of process groups go on while a rank is held: %s", error)


def _backends() -> list[Any]:
    from torch.distributed import distributed_c10d

    found = []
    for group in distributed_c10d._world.pg_map:
        for device in group._device_types:
            backend = group._get_backend(device)
            if backend not in found:
                found.append(backend)
    return found
