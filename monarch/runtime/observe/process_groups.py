"""A process's torch process groups: their timeouts, their connections, and how to abort them."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import socket
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

_log = logging.getLogger("monarch.proc")

Address = tuple[str, int]
Connection = tuple[Address, Address]

_HELD = datetime.timedelta(hours=24)

_before: dict[Any, datetime.timedelta] = {}


def hold_process_groups(is_held: bool) -> None:
    """Set the timeout of all groups of this process to a day, or back to its earlier value.

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


def rank_connections(urls: Iterable[str]) -> list[Connection]:
    """Return both ends of each TCP connection of this process, the local end first.

    Left out are the connections of the runtime, which listens at ``urls``, and of ``MASTER_PORT``.
    """
    ours = {urlsplit(url).port for url in urls if "tcp:" in url}
    ours.add(int(os.environ.get("MASTER_PORT") or 0))
    return [
        (near, far)
        for _, near, far in _tcp_connections()
        if near[1] not in ours and far[1] not in ours
    ]


def abort_groups(connections: Collection[Connection]) -> None:
    """Shut these connections down, and abort the process groups of this process.

    Ranks that wait for this one in a collective get an error at once: gloo notices its connections'
    end, NCCL the abort.
    """
    wanted = {tuple(map(tuple, connection)) for connection in connections}
    for number, near, far in _tcp_connections():
        if (near, far) in wanted:
            with contextlib.suppress(OSError), _duplicate(number) as end:
                end.shutdown(socket.SHUT_RDWR)
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        with contextlib.suppress(Exception):
            distributed.distributed_c10d._abort_process_group()


def _backends() -> list[Any]:
    from torch.distributed import distributed_c10d

    backends = []
    for group in list(distributed_c10d._world.pg_map):  # Other threads make and end groups.
        for device in group._device_types:
            backend = group._get_backend(device)
            # Those of torch's fake backend, as of a mesh's dimension of one rank, wait for no other
            # rank.
            if backend.options is not None and backend not in backends:
                backends.append(backend)
    return backends


def _tcp_connections() -> Iterator[tuple[int, Address, Address]]:
    """Yield the descriptor and both ends of each TCP connection."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with _duplicate(number) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == _STREAM:
                    yield number, _plain(end.getsockname()), _plain(end.getpeername())


_STREAM = socket.SOCK_STREAM


def _duplicate(number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(number))


def _plain(address: Any) -> Address:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
