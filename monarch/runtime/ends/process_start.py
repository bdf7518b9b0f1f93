"""The start time of a process, which distinguishes it from a later process with the same pid, and
its parent.
"""

from __future__ import annotations

import calendar
import os
import subprocess
import time

_PROC = os.path.exists("/proc/self/stat")
_EXEC_SECONDS = 2.0
_LOOK_SECONDS = 0.001
# ps may work a start out from when the machine was booted, by a clock that is set meanwhile.
_PS_SECONDS = 2


def process_start(pid: int, *, even_ended: bool = False) -> int | None:
    """Return a number that the kernel keeps for a process: its start in ticks since boot (on a Mac:
    in seconds since 1970). ``None`` if there is no such process.

    A process that has ended, and that its parent has not waited for, counts only if ``even_ended``.
    """
    if not _PROC:
        return _start_by_ps(pid, even_ended)
    fields = _status(pid)
    if not fields:
        return None
    return None if fields[0] == "Z" and not even_ended else int(fields[19])


def is_running(pid: int, started: int, *, even_ended: bool = False) -> bool:
    """Return whether the process exists that has this pid and was started at ``started``.

    See ``process_start`` for ``even_ended``.
    """
    start = process_start(pid, even_ended=even_ended) if started > 0 else None
    return start is not None and abs(start - started) <= (0 if _PROC else _PS_SECONDS)


def is_ours(pid: int, started: int, *words: str) -> bool:
    """Return whether a pid is that of one of the user's processes, which started at ``started``.

    A pid and a start time from a file could belong to any process. So ``words`` must be in its
    command.
    """
    if not is_running(pid, started):
        return False
    if not _PROC:
        user, *command = _ps(pid, "uid=", "command=") or [""]
        return user == str(os.geteuid()) and all(word in " ".join(command) for word in words)
    deadline = time.monotonic() + _EXEC_SECONDS
    while True:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                user_id, words_there = os.fstat(file.fileno()).st_uid, file.read()
        except OSError:
            return False
        # One that was started a moment ago has no command yet. Nor have the kernel's own threads.
        if words_there or not words or time.monotonic() > deadline or not is_running(pid, started):
            break
        time.sleep(_LOOK_SECONDS)
    return user_id == os.geteuid() and all(os.fsencode(word) in words_there for word in words)


def parent_of(pid: int) -> int | None:
    """Return the pid of the parent of a process; ``None`` if there is no such process."""
    fields = _status(pid) if _PROC else _ps(pid, "stat=", "ppid=")
    return int(fields[1]) if fields else None


def is_there(pid: int) -> bool:
    """Return whether there is a process with this pid, including other users' processes and ended
    ones that their parent has not waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def seconds_since_start() -> float:
    """Return the seconds since the kernel started this process: interpreter and imports
    included."""
    started = process_start(os.getpid()) or 0
    if not _PROC:
        return time.time() - started
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _start_by_ps(pid: int, even_ended: bool) -> int | None:
    fields = _ps(pid, "stat=", "lstart=")
    if not fields or (fields[0].startswith("Z") and not even_ended):
        return None
    return calendar.timegm(time.strptime(" ".join(fields[1:]), "%a %b %d %H:%M:%S %Y"))


def _ps(pid: int, *columns: str) -> list[str]:
    """Return the output of POSIX's ``ps`` for a process; empty if there is none. Times are in
    UTC."""
    options = [word for column in columns for word in ("-o", column)]
    command = ["ps", "-ww", "-p", str(pid), *options]
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return done.stdout.split()
