"""Where a process receives the segments of others: a datagram socket for descriptors.

The kernel keeps a descriptor that was handed over: it arrives even if the sender has died since. A
sender needs only the path of the socket, which is in a directory that only the user can enter.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket

from monarch.net.unix_socket import bind_private, check_owner

_MAX_NAME = 256
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Only Linux has it.


def door_path(url: str) -> str:
    """Return the path of the segment door of the process that listens at ``url``, an ``ipc://``
    URL."""
    return url.removeprefix("ipc://") + ".m"


class SegmentDoor:
    """Receives descriptors; ``take`` returns those that have arrived."""

    def __init__(self, path: str) -> None:
        """Make the socket. Raises ``OSError`` if there can be none at ``path``, ``PermissionError``
        for a folder in which others could replace it."""
        self._path = path
        self._socket = bind_private(path, socket.SOCK_DGRAM)

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> list[tuple[str, int | None]]:
        """Return the names and descriptors that have arrived; the caller closes the descriptors.

        A descriptor is ``None`` if the kernel had to drop it, because this process has too many
        open.
        """
        arrived: list[tuple[str, int | None]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, _MAX_NAME, 1, _CLOSE_ON_EXEC)
            except OSError:
                return arrived
            arrived.append((data.decode(errors="replace"), fds[0] if fds else None))

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def hand_over(path: str, name: str, fd: int) -> None:
    """Hand ``fd`` to the process behind the door at ``path``. Raises ``OSError`` if that is
    impossible now: there is no process, it belongs to another user, or too many descriptors wait
    there already."""
    check_owner(path)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([name.encode()], [rights], socket.MSG_DONTWAIT, path)
