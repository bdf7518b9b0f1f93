"""debugpy's adapter for one user only: a program with the adapter's arguments.

Any program that attaches at the adapter's port on loopback runs code in all ranks, and the adapter
asks for no secret. So this program passes on only connections that this user, or root, has made;
the kernel knows the user of each.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from typing import Any

_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_THEIRS, _OURS, _USER = 1, 2, 7  # columns, where the row is that of their end
_NUM_READS = 20  # A row may be passed over where others come or go while the table is read.


def user_of(connection: socket.socket) -> int | None:
    """Return the uid of the user that made a connection from this machine; ``None`` if not
    known."""
    ends = [_as_the_kernel_does(connection.getpeername())]
    ends.append(_as_the_kernel_does(connection.getsockname()))
    for _ in range(_NUM_READS):
        with open(_TABLES[connection.family], encoding="ascii") as table:
            for row in table:
                columns = row.split()
                if [columns[_THEIRS], columns[_OURS]] == ends:
                    return int(columns[_USER])
    return None


def _as_the_kernel_does(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = [int.from_bytes(packed[i : i + 4], sys.byteorder) for i in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def main() -> None:
    accept = socket.socket.accept

    def accept_ours(listener: socket.socket) -> tuple[socket.socket, Any]:
        while True:
            connection, address = accept(listener)
            try:
                if user_of(connection) in (os.getuid(), 0):
                    return connection, address
            except OSError:
                pass  # It has gone meanwhile.
            connection.close()

    socket.socket.accept = accept_ours  # type: ignore[method-assign, assignment]
    runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
