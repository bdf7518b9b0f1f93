"""A prelude for programs that are to run as if on another system than Linux: what only Linux has is
taken away before anything of ours is imported."""

from __future__ import annotations

__all__ = ["ELSEWHERE"]

ELSEWHERE = """
# A new Python: what is taken away here is not there when others are imported.
import builtins, ctypes, fcntl, io, os, select, selectors, signal, socket, sys, threading, time
from pathlib import Path

ONLY_LINUX = {
    os: "O_TMPFILE O_PATH copy_file_range posix_fallocate memfd_create pidfd_open "
        "sched_getaffinity "
        "sched_setaffinity posix_fadvise eventfd eventfd_read eventfd_write EFD_NONBLOCK "
        "EFD_CLOEXEC splice pipe2 waitid getrandom MFD_CLOEXEC MFD_ALLOW_SEALING timerfd_create "
        "getxattr setxattr listxattr prlimit",
    select: "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET EPOLLONESHOT",
    selectors: "EpollSelector PollSelector",
    signal: "pidfd_send_signal",
    socket: "SO_PEERCRED SO_PEERSEC SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC MSG_NOSIGNAL "
            "TCP_USER_TIMEOUT TCP_KEEPIDLE SO_BINDTODEVICE TCP_QUICKACK",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_SETLEASE F_GETLEASE F_SETSIG F_ADD_SEALS F_GET_SEALS",
    time: "CLOCK_BOOTTIME",
}
for module, names in ONLY_LINUX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
selectors.DefaultSelector = selectors.SelectSelector


real_libc = ctypes.CDLL(None)


class Libc:
    def __getattr__(self, name):
        if name in ("getenv", "madvise"):
            return getattr(real_libc, name)
        raise AttributeError(f"symbol not found: {name}")


ctypes.CDLL = ctypes.PyDLL = lambda *args, **options: Libc()


def is_elsewhere(path):
    return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(
        ("/proc", "/sys/")
    )


def without_linux(act):
    def acted(path, *args, **options):
        if is_elsewhere(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return act(path, *args, **options)
    return acted


for name in ("stat", "lstat", "listdir", "readlink", "scandir", "open"):
    setattr(os, name, without_linux(getattr(os, name)))
builtins.open = io.open = without_linux(open)
real_exists = os.path.exists
os.path.exists = lambda path: not is_elsewhere(path) and real_exists(path)
real_text = Path.read_text
Path.read_text = (
    lambda path, *args, **options: open(path).close() or real_text(path, *args, **options)
)
"""
