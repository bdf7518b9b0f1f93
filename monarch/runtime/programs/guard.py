"""Runs one program, and leaves nothing of it: a script of its own, for a bare interpreter.

``python -I -S guard.py FD TERMINAL DIRECTORY PROGRAM...``. The host agent holds the other end of
the socket FD. Each byte that comes is a signal for the program's process group; the end of the
socket, which comes with any end of the agent, ends everything. When the program
ends, so does all that it has left behind, also what has moved to a session of its own: as a
subreaper, this process becomes the parent of orphans. The exit status goes back as a line.
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


def main() -> None:
    """Run the program that the arguments name."""
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    has_terminal, directory, program = sys.argv[2] == "1", sys.argv[3], sys.argv[4:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # They are meant for the program.
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
        for number in (
            signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU,
            signal.SIGCHLD, signal.SIGPIPE,
        ):  # fmt: skip
            signal.signal(number, signal.SIG_DFL)
        os.chdir(directory)
        os.execvp(program[0], program)
    except OSError as error:
        what = program[0] if error.filename is None else error.filename
        os.write(2, f"monarch: {what}: {error.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _look_after(child: int, lifeline: socket.socket, woken: int) -> int:
    """Wait until the program and all that it has started have ended; return its status."""
    while True:
        found = select.select([lifeline.fileno(), woken], [], [])[0]
        if woken in found:
            os.read(woken, 4096)
            ended, status = _reap(child)
            if ended:
                _end_rest(_LEFTOVER_SECONDS)
                return status
        if lifeline.fileno() in found:
            try:
                told = lifeline.recv(64)
            except OSError:
                told = b""
            for number in told:
                _signal_group(child, number)
            if not told or signal.SIGKILL in told:
                status = _end_rest(0.0 if told else _GRACE_SECONDS, child)
                return status


def _reap(child: int) -> "tuple[bool, int]":
    """Return whether the program is among the children that have ended, and its status."""
    found = False, 0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = True, _in_shell_words(status)
    return found


def _in_shell_words(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _end_rest(grace_seconds: float, child: int = 0) -> int:
    """End all that is left: asked first, then killed. The status of ``child``, if it is there."""
    status, deadline, is_asked = 128 + signal.SIGKILL, time.monotonic() + grace_seconds, False
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, found = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == child:
                    status = _in_shell_words(found)
        left = _descendants()
        if not left:
            return status
        is_late = time.monotonic() > deadline
        if is_late or not is_asked:
            for pid in left:
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
    found, todo = [], [os.getpid()]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal_group(child: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child, number)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
