"""What connects a process with others of its process groups, and the end of that by force."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

Address = tuple[str, int]
Connection = tuple[Address, Address]


def rank_connections(urls: Iterable[str]) -> list[Connection]:
    """Both ends of each TCP connection, the own one first, but for those that the runtime, which
    listens at ``urls``, and the rendezvous need."""
    ours = {urlsplit(url).port for url in urls if "tcp:" in url}
    ours.add(int(os.environ.get("MASTER_PORT") or 0))
    return [
        (here, there)
        for _, here, there in _tcp_connections()
        if here[1] not in ours and there[1] not in ours
    ]


def abort_groups(connections: Collection[Connection]) -> None:
    """End these, as if the other side had gone; and the process groups, as NCCL's abort does.

    A rank that waits for this one in a collective hears of it at once: gloo looks at its
    connections alone.
    """
    wanted = {tuple(map(tuple, one)) for one in connections}
    for number, here, there in _tcp_connections():
        if (here, there) in wanted:
            with contextlib.suppress(OSError), _duplicate(number) as end:
                end.shutdown(socket.SHUT_RDWR)
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        with contextlib.suppress(Exception):
            distributed.distributed_c10d._abort_process_group()


def _tcp_connections() -> Iterator[tuple[int, Address, Address]]:
    """The descriptor and both ends of each."""
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
