"""Runs one program, and leaves nothing of it: a script of its own, for a bare interpreter.

``python -I -S guard.py FD TERMINAL DIRECTORY PROGRAM...``. The host agent has the other end of the
socket FD. Each byte from there is a signal for the program's process group; the end of the socket,
which comes with any end of the agent, ends everything. When the program ends, this process ends all
that it has left behind, in other sessions too: as a subreaper it is the parent of orphans. It sends
the exit status back as a line.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3.0
_LEFTOVER_SECONDS = 0.5
_FOR_THE_PROGRAM = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


def main() -> None:
    """Run the program that the arguments name."""
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    has_terminal, directory, program = sys.argv[2] == "1", sys.argv[3], sys.argv[4:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for number in _FOR_THE_PROGRAM:
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(program, directory, has_terminal)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)  # Its readers see an end when the program's own are closed.
    status = _look_after(child, lifeline, woken)
    with contextlib.suppress(OSError):
        lifeline.sendall(b"%d\n" % status)


def _become(program: "list[str]", directory: str, has_terminal: bool) -> None:
    try:
        os.setpgid(0, 0)
        if has_terminal:
            os.tcsetpgrp(0, os.getpid())
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (*_FOR_THE_PROGRAM, signal.SIGTTOU, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(directory)
        os.execvp(program[0], program)
    except OSError as error:
        path = program[0] if error.filename is None else error.filename
        os.write(2, f"monarch: {path}: {error.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _look_after(child: int, lifeline: socket.socket, woken: int) -> int:
    """Wait until the program and all that it has started have ended; return its status."""
    while True:
        readable = select.select([lifeline.fileno(), woken], [], [])[0]
        if woken in readable:
            os.read(woken, 4096)
            status = _reap(child)
            if status is not None:
                _end_rest(_LEFTOVER_SECONDS)
                return status
        if lifeline.fileno() in readable:
            try:
                signals = lifeline.recv(64)
            except OSError:
                signals = b""
            for number in signals:
                with contextlib.suppress(OSError):
                    os.killpg(child, number)
            if not signals or signal.SIGKILL in signals:
                return _end_rest(0.0 if signals else _GRACE_SECONDS, child)


def _reap(child: int) -> "int | None":
    """Collect the children that have ended; return the exit status of ``child``.

    After a signal it is 128 plus the signal's number. ``None`` if ``child`` is not among them.
    """
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                status = 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
    return status


def _end_rest(grace_seconds: float, child: int = 0) -> int:
    """Ask all remaining processes to end, and kill them after ``grace_seconds``.

    Returns the status of ``child``; that of a killed program if ``child`` had ended before.
    """
    status, deadline, is_asked = 128 + signal.SIGKILL, time.monotonic() + grace_seconds, False
    while True:
        ended = _reap(child)
        status = status if ended is None else ended
        remaining = _descendants()
        if not remaining:
            return status
        is_late = time.monotonic() > deadline
        if is_late or not is_asked:
            for pid in remaining:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
            is_asked = True
        time.sleep(0.01)


def _descendants() -> "list[int]":
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(name))
    descendants, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        descendants += children
        todo += children
    return descendants


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
