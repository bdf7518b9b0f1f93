"""Programs that begin where Python has imported our runtime: forked from a process that did.

Most of what a short program takes is imports, and the tests start thousands: host agents, templates
of procs, commands, scripts. A process of each test worker imports what they have in common, once,
and is forked for each. Who starts one does so as ever, by ``subprocess``: only the last step, where
the process is made, is ours (`_fork_exec`). What comes of it is the caller's own child, with its
arguments, environment, folder, streams, session and end.

A program that is begun this way keeps a fork of its first moment, so that it can begin others the
same way: what it starts must be its own child, too.

Where a program asks for what only a new Python gives (variables that Python itself reads, limits,
users, ignored signals), is about imports, or could find modules of its own in place of those that
were imported, it is started the usual way.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO, cast

_CONTROL_FD = "MONARCH_TEST_WARM_FD"
_AGENT, _TEMPLATE = _RUNTIME = ("monarch.runtime.entry.host_main", "monarch.runtime.entry.zygote")
# Read by Python or the dynamic linker when a process begins, or by libraries at their import.
_READ_AT_START = (
    "MONARCH_", "PYTHON", "LD_", "OMP_", "MKL_", "MALLOC_", "LC_", "LANG", "TZ", "OTEL_",
    "COVERAGE",
)  # fmt: skip
_NOT_READ = {
    "PYTHONUNBUFFERED",  # The child sees to it.
    "MONARCH_JOB_SECRET_FD", "MONARCH_READY_FD", "MONARCH_CONTROL_FD",
}  # fmt: skip
_IMPORTED = (
    "monarch.cli.main", "monarch.cli.entry", "monarch.cli.run.run", "monarch.job", "monarch.runs",
    "monarch.actor", "monarch.runtime.process", "monarch.runtime.client_agent", "monarch_sync",
    *_RUNTIME,
)  # fmt: skip
# A text with one of these may be about how Python begins.
_ABOUT_STARTS = (
    "A new Python",
    "sys.modules",
    "sys.flags",
    "sys.path",
    "importlib",
    "subreaper",
    "getrusage",
)
_LIBRARIES = {
    "monarch", "monarch_sync", "monarch_reload", "monarch_recipes", "zmq", "msgspec", "cloudpickle",
    "xxhash", "click", "rich", "watchfiles", "tomli", "backports", "sitecustomize", "write_guard",
}  # fmt: skip
_PROJECT = Path(__file__).parents[1]
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_ALWAYS_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}
_FIRST_HIGH_FD = 300

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_SET_MM, _PR_SET_MM_MAP, _PR_GET_TID_ADDRESS = 35, 14, 40
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())

_fork_exec: Any = getattr(subprocess, "_fork_exec", None)  # Python 3.11 and later


class WarmPython:
    """The process that is forked, as the one knows it whose children the forks are."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = self._owner = 0
        self._environment: dict[str, str] = {}
        self._here: object = None
        self._lock = threading.Lock()

    @property
    def pids(self) -> set[int]:
        return {self._pid} if self._socket is not None else set()

    @property
    def descriptors(self) -> set[int]:
        return set() if self._socket is None else {self._socket.fileno()}

    def start(self) -> None:
        """On the main thread: forks are children of the thread that has started the process."""
        if _fork_exec is None or _CLONE is None or self._socket is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=_PROJECT,
                env={**os.environ, _CONTROL_FD: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.begin(ours, self._server.pid)

    def begin(self, control: socket.socket, pid: int) -> None:
        """Have ``subprocess`` ask the process at the other end of ``control``."""
        self._socket, self._pid, self._owner = control, pid, os.getpid()
        self._environment, self._here = dict(os.environ), _surroundings()
        subprocess._fork_exec = self._make  # type: ignore[attr-defined]

    def close(self) -> None:
        if self._socket is not None:
            subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]
            # Not only closed: what a test has forked may have it, too.
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
            self._server.wait(10)

    def _make(self, *asked: Any) -> int:
        """In place of ``_posixsubprocess.fork_exec``."""
        order = None
        with contextlib.suppress(OSError):  # Its folder is gone, or a stream is closed.
            order = self._order(*asked)
        return (self._fork(*order) if order else 0) or _fork_exec(*asked)

    def _order(
        self, args: Sequence[Any], executables: Sequence[bytes], close_fds: bool,
        kept: Sequence[int], cwd: Any, environment: Sequence[bytes] | None,
        stdin: int, _0: int, _1: int, stdout: int, _2: int, stderr: int, _3: int, errors: int,
        _4: bool, own_session: bool, *rest: Any,
    ) -> tuple[dict[str, Any], list[int]] | None:  # fmt: skip
        """What to ask for, and the descriptors; ``None`` for what needs a new Python."""
        group, gid, gids, uid, umask, preexec, _ = rest
        usual = (group, gid, gids, uid, umask, preexec) == (-1, None, None, None, -1, None)
        words = [os.fsdecode(word) for word in args]
        is_ours = os.getpid() == self._owner  # Forks of a fork of ours would be no children of it.
        if (
            not is_ours
            or not usual
            or not close_fds
            or executables[0] != os.fsencode(sys.executable)
        ):
            return None
        if not _is_known(words[1:]) or _surroundings() != self._here:
            return None
        items = environment or [b"%b=%b" % item for item in os.environb.items()]
        env = dict(os.fsdecode(item).split("=", 1) for item in items)
        folder = os.fsdecode(cwd) if cwd is not None else os.getcwd()
        if not self._fits(env) or (words[3:4] not in ([_AGENT], [_TEMPLATE]) and _shadows(folder)):
            return None
        streams = [fd if fd >= 0 else own for own, fd in enumerate((stdin, stdout, stderr))]
        order = {
            "words": words, "cwd": folder, "env": env, "own_session": own_session,
            "fds": [0, 1, 2, *kept], "umask": _umask(),
            "begun": errors,  # Who starts a program waits until this is closed.
        }  # fmt: skip
        return order, [*streams, *kept]

    def _fits(self, environment: dict[str, str]) -> bool:
        """Whether Python would begin with this environment as it did with ours."""
        names = {*environment, *self._environment} - _NOT_READ
        return all(
            environment.get(name) == self._environment.get(name)
            for name in names if name.startswith(_READ_AT_START)
        )  # fmt: skip

    def _fork(self, order: dict[str, Any], fds: list[int]) -> int:
        """The pid of a child of ours; 0 where none could be made."""
        assert self._socket is not None
        data = json.dumps(order).encode("utf-8", "surrogateescape")
        with self._lock, os.fdopen(os.memfd_create("order"), "w+b") as file:
            file.write(data)
            file.flush()
            try:
                socket.send_fds(self._socket, [b"fork"], [file.fileno(), *fds])
                return int(self._socket.recv(64) or b"0")
            except OSError:
                return 0


warm_python = WarmPython()


def _is_known(words: Sequence[str]) -> bool:
    """Whether these arguments of Python's begin a program that uses what was imported."""
    if len(words) < 2:
        return False
    kind, what, *more = words
    if kind == "-m":
        return what in (_AGENT, "monarch.cli.main")
    if kind != "-c":
        return False
    if "runpy.run_module" in what:
        return more[:1] in ([_AGENT], [_TEMPLATE])
    return "monarch" in what and not any(word in what for word in _ABOUT_STARTS)


def _shadows(folder: str) -> bool:
    """Whether an import would find something in ``folder`` that was imported from elsewhere."""
    try:
        # Also what Python compiled; `monarch.toml` is no module.
        names = {
            name.partition(".")[0] for name in os.listdir(folder)
            if name.endswith((".py", ".pyc", ".so")) or "." not in name
        }  # fmt: skip
    except OSError:
        return True
    is_ours = Path(folder) == _PROJECT
    return not is_ours and bool(names & (sys.stdlib_module_names | _LIBRARIES))


def _surroundings() -> object:
    """What a process has of the one that started it, and a fork of another would not have."""
    ignored = {
        number for number in signal.valid_signals() - _ALWAYS_IGNORED
        if signal.getsignal(number) is signal.SIG_IGN
    }  # fmt: skip
    return (
        ignored, signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.getuid(), os.geteuid(),
        os.getgid(), [resource.getrlimit(limit) for limit in _LIMITS],
        [os.readlink(f"/proc/thread-self/ns/{kind}") for kind in ("mnt", "net", "pid")],
    )  # fmt: skip


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("Umask")).split()[1], 8)


# In the process that is forked.


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each order; in the child that comes of one, return the order."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, 64, 250)
        if not data:
            os._exit(0)
        pid = _clone()
        if pid:
            for fd in fds:
                os.close(fd)
            control.send(str(pid).encode())
            continue
        control.close()
        with os.fdopen(fds[0], "rb") as file:
            file.seek(0)
            order: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogateescape"))
        if order["own_session"]:
            os.setsid()
        _take(fds[1:], order["fds"])
        return order


def _clone() -> int:
    """As ``os.fork``, but the child's parent is ours. Both are what glibc makes of a fork."""
    python, tid = ctypes.pythonapi, ctypes.c_void_p()
    libc = ctypes.PyDLL(None)  # It keeps the interpreter's lock.
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0):
        os._exit(1)  # A kernel that does not tell: whoever asks starts a new Python.
    flags = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    # Where they differ, aarch64 has the thread's storage, unused here, before the address.
    last = (tid, None) if _CLONE == 56 else (None, tid)
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(ctypes.c_long(_CLONE or 0), ctypes.c_long(flags), None, None, *last)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return max(pid, 0)


def _take(given: Sequence[int], numbers: Sequence[int]) -> None:
    """Have these descriptors at these numbers."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST_HIGH_FD) for fd in given]
    for fd in given:
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number, inheritable=number < 3)
        os.close(fd)
    for number in numbers:
        os.set_inheritable(number, True)


def _next_program(control: socket.socket) -> dict[str, Any]:
    """The order that this process is to carry out; where it starts others, a fork waits for it."""
    global _keeps
    while True:
        order = _serve(control)
        if _TEMPLATE in order["words"]:
            return order
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid:
            theirs.close()
            _keeps = ours, pid
            return order
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in order["fds"]:
            os.dup2(nothing, fd) if fd < 3 else os.close(fd)
        os.close(nothing)
        control = theirs


def _become(order: dict[str, Any]) -> None:
    """This process is the program now, as Python would have begun it."""
    os.chdir(order["cwd"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # It may be another than was looked up before.
    words = order["words"]
    sys.orig_argv[:] = words
    sys.path[0] = "" if words[1] == "-c" else os.getcwd()
    if os.environ.get("PYTHONUNBUFFERED"):
        # The warm process may have begun with a buffer, which `write_through` leaves where it is.
        sys.stdout = sys.__stdout__ = _unbuffered(sys.stdout)
        sys.stderr = sys.__stderr__ = _unbuffered(sys.stderr)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=number == 2 or os.isatty(number))
    _show(words)
    os.close(order["begun"])
    if _keeps is not None:
        warm_python.begin(*_keeps)


def _unbuffered(stream: TextIO) -> TextIO:
    """Return a stream that writes to the same file at once, as ``python -u`` has it."""
    raw = io.FileIO(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        cast("BinaryIO", raw), stream.encoding, stream.errors, write_through=True
    )


def _show(words: Sequence[str]) -> None:
    """Have the kernel show these as the command of this process, and its environment."""

    class Map(ctypes.Structure):
        _fields_ = [(f"place{number}", ctypes.c_uint64) for number in range(12)] + [
            ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32),
        ]  # fmt: skip

    data = b"".join(os.fsencode(word) + b"\0" for word in words)
    environment = b"".join(b"%b=%b\0" % item for item in os.environb.items())
    shown = ctypes.create_string_buffer(data + environment, len(data + environment) + 1)
    # Nothing may free it, as long as there is a process to be looked at.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shown))
    with open("/proc/self/stat", "rb") as file:
        stat = [b"", b"", *file.read().rpartition(b")")[2].split()]  # By proc(5), less 1.
    start = ctypes.addressof(shown)
    middle = start + len(data)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    fields = [int(stat[number]) for number in (25, 26, 44, 45, 46)]
    places = Map(
        *fields, libc.sbrk(0), int(stat[27]), start, middle,
        middle, middle + len(environment), 0, 0, 0xFFFFFFFF,
    )  # fmt: skip
    if libc.prctl(
        _PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(places), ctypes.c_ulong(ctypes.sizeof(places)), 0
    ):
        raise OSError(ctypes.get_errno(), "the command of a forked program cannot be shown")


def _run(words: Sequence[str]) -> None:
    _, kind, what, *more = words
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.argv = [what, *more]
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.argv = ["-c", *more]
    sys.modules.pop(more[0] if more else "", None)
    exec(compile(what, "<string>", "exec"), main.__dict__)


def _run_to_its_end(words: Sequence[str]) -> NoReturn:
    try:
        _run(words)
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
    sys.exit(0)


def _main() -> NoReturn:
    for name in _IMPORTED:
        importlib.import_module(name)
    control = socket.socket(fileno=int(os.environ.pop(_CONTROL_FD)))
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not forked"
    _show(sys.orig_argv)  # Where the kernel lets nobody do so, this ends here.
    gc.collect()
    gc.freeze()
    order = _next_program(control)
    _become(order)
    _run_to_its_end(order["words"])


_keeps: tuple[socket.socket, int] | None = None

if __name__ == "__main__":
    _main()
