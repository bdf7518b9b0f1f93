"""Unix sockets that only their user can reach.

The file mode is right from the first moment, no other user can replace the folder, and a name is
reused only if its process is dead. Abstract names, which have no owner, are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from socket import AF_UNIX, SOCK_STREAM, SocketKind
from socket import socket as RawSocket

_BACKLOG = 4096


def open_private(path: str) -> RawSocket:
    """Return a listening socket of mode 0600 at ``path``.

    Raises ``OSError`` if a process listens there already, ``PermissionError`` for a folder in which
    others could replace the socket.
    """
    check_folder(path)
    if _is_answered(path):
        raise OSError(errno.EADDRINUSE, "Address already in use")
    listener = bind_private(path, SOCK_STREAM)
    listener.listen(_BACKLOG)
    return listener


def bind_private(path: str, kind: SocketKind) -> RawSocket:
    """Return a socket of mode 0600 with the name ``path``, in place of an earlier socket there.

    Raises ``OSError`` for other files there, ``PermissionError`` for a folder in which others could
    replace the socket.
    """
    check_folder(path)
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EADDRINUSE, "something that is no socket is there")
        os.unlink(path)
    private = RawSocket(AF_UNIX, kind)
    try:
        # Before it has a name: there is no moment at which others could connect.
        os.fchmod(private.fileno(), 0o600)
        private.bind(path)
        private.setblocking(False)
    except BaseException:
        private.close()
        raise
    return private


def check_folder(path: str) -> None:
    """Raise ``PermissionError`` if other users could put a socket of theirs at ``path``."""
    if path.startswith("@"):
        raise PermissionError(
            f"ipc://{path} is an abstract name, which any user of this machine could take or "
            "reach; use the path of a file"
        )
    folder = os.path.dirname(path) or "."
    status = os.stat(folder)
    is_shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (os.getuid(), 0) or is_shared:
        raise PermissionError(
            f"refusing to use the Unix socket {path}: others can write to its folder, and could "
            f"put a socket of theirs in its place. Use a folder of your own with mode 0700"
        )


def check_owner(path: str) -> None:
    """Raise ``PermissionError`` if the socket at ``path`` belongs to another user."""
    try:
        check_folder(path)
        owner = os.lstat(path).st_uid
    except FileNotFoundError:
        return
    if owner not in (os.getuid(), 0):
        raise PermissionError(
            f"refusing to connect to {path}: it belongs to another user (uid {owner})"
        )


def _is_answered(path: str) -> bool:
    """Return whether a process listens; a file that a dead process left does not count."""
    with RawSocket(AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
