"""Refuses what would change files outside of the places that tests own.

An audit hook looks at each act that changes a file or a folder, by the place where it would
really happen: links are followed as the kernel would. Python processes that the tests start install
the same hook, as this folder is on their `PYTHONPATH` (`sitecustomize`). What other programs do
(git, rm) and what goes past Python (ctypes) is not seen.

Needs nothing but the standard library, and as little of that as can be: it is the first that each
process imports.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ROOTS = "MONARCH_TEST_WRITE_ROOTS"  # Folders in which anything may be done, joined by ":".
REPORT = "MONARCH_TEST_WRITE_REPORT"  # A file to which each refusal is added, one a line.

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# A test may take them away, to see what a program does on a system without.
_open, _readlink, _O_PATH = os.open, os.readlink, os.O_PATH

_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What the kernel shows as files, and what swallows what is written.
_DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts/", "/proc/",
    "/dev/net/tun",
)  # fmt: skip


class OutsideOfTests(PermissionError):
    """A test would have changed what is not its own."""


def install(roots: str, report: str, is_on: Callable[[], bool] = lambda: True) -> None:
    """Watch this process, and those that it forks, whenever `is_on` says so."""
    report = os.path.realpath(report)
    allowed = tuple(f"{os.path.realpath(root)}/" for root in roots.split(":") if root)
    bytecode = tuple(
        f"{os.path.realpath(place)}/" for place in {sys.prefix, sys.base_prefix, _PROJECT}
    )

    def look(event: str, args: tuple[object, ...]) -> None:
        paths_of = _EVENTS.get(event)
        if paths_of is None or not is_on():
            return
        for path in paths_of(*args):
            if not _is_allowed(path):
                _say(report, event, path)
                raise OutsideOfTests(1, f"{event}: outside of what tests may change", path)

    def _is_allowed(path: str) -> bool:
        if path.startswith(allowed) or f"{path}/" in allowed or path.startswith(_DEVICES):
            return True
        if path == report or path.startswith(
            "/memfd:"
        ):  # Memory, by the name that it has in /proc.
            return True
        return "/__pycache__/" in f"{path}/" and path.startswith(bytecode)

    sys.addaudithook(look)


def _say(report: str, event: str, path: str) -> None:
    frame, stack = sys._getframe(2), []
    while frame is not None and len(stack) < 6:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    line = f"{event} {path!a} by process {os.getpid()}: {' < '.join(stack)}\n"
    try:
        fd = os.open(report, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return  # The run is over.
    try:
        os.write(fd, line.encode("ascii", "backslashreplace"))
    finally:
        os.close(fd)


def _place(path: object, dir_fd: object = None, *, follows: bool = False) -> list[str]:
    """Where an act on `path` would really happen; nowhere if there is no such folder."""
    if isinstance(path, int):
        return _of_descriptor(path) if path >= 0 else []
    name = os.fsdecode(path)  # type: ignore[arg-type]
    if isinstance(dir_fd, int) and dir_fd >= 0 and not name.startswith("/"):
        name = f"/proc/self/fd/{dir_fd}/{name}"
    folder, _, last = name.rstrip("/").rpartition("/")
    if not last:
        return ["/"]
    if last in (".", ".."):
        folder, last = f"{folder}/{last}" if folder else last, ""
    elif not folder:
        folder = "/" if name.startswith("/") else "."
    real = _folder(folder)
    if real is None:
        return []
    place = f"{real.rstrip('/')}/{last}" if last else real
    if follows:
        try:
            os.readlink(place)
        except OSError:
            return [place]
        return [os.path.realpath(place)]
    return [place]


def _folder(path: str) -> str | None:
    try:
        fd = _open(path, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # Out of descriptors, or no right to look.
        return os.path.realpath(path)
    try:
        return _readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    finally:
        os.close(fd)


def _of_descriptor(fd: int) -> list[str]:
    try:
        target = _readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return []
    return [target] if target.startswith("/") and not target.startswith("/memfd:") else []


def _opened(path: object, mode: object, flags: object) -> list[str]:
    if isinstance(path, int) or not isinstance(flags, int):
        return []  # A descriptor was judged as it was opened.
    if not flags & _WRITES or flags & _O_PATH == _O_PATH:
        return []
    makes = flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
    return _place(path, follows=not makes and not flags & os.O_NOFOLLOW)


def _two(source: object, target: object, source_fd: object, target_fd: object) -> list[str]:
    return [*_place(source, source_fd), *_place(target, target_fd)]


_EVENTS = {
    "open": _opened,
    "os.truncate": lambda path, *_: _place(path, follows=True),
    "os.mkdir": lambda path, mode, fd: _place(path, fd),
    "os.rename": _two,
    "os.remove": _place,
    "os.rmdir": _place,
    "os.chmod": lambda path, mode, fd: _place(path, fd, follows=True),
    "os.chown": lambda path, user, group, fd: _place(path, fd, follows=True),
    "os.utime": lambda path, times, ns, fd: _place(path, fd, follows=True),
    "os.link": _two,
    "os.symlink": lambda source, target, fd: _place(target, fd),
    "os.setxattr": lambda path, *_: _place(path, follows=True),
    "os.removexattr": lambda path, *_: _place(path, follows=True),
}
