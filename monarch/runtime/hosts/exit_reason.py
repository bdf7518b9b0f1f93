"""Why a process ended, in words, from its exit code and from what the kernel counts."""

from __future__ import annotations

import signal


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "its template process died"
    if code >= 0:
        return f"it exited with status {code}, unasked (by os._exit, or exit() of a library)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"it was killed by {name} (process failure: Killed(sig={-code}))"


class ExitReasons:
    """Describes exits; knows an out-of-memory kill by the count that goes up with it."""

    def __init__(self, cgroup_root: str = "/sys/fs/cgroup", self_cgroup: str = "") -> None:
        self._root = cgroup_root
        self._self_cgroup = self_cgroup or "/proc/self/cgroup"
        self._kills = oom_kills(self._root, self._self_cgroup)

    def describe(self, code: int | None) -> str:
        text = describe_exit(code)
        if code != -signal.SIGKILL:
            return text
        before, self._kills = self._kills, oom_kills(self._root, self._self_cgroup)
        if self._kills > before:
            return (
                f"{text}: out of memory, says the kernel (oom_kill of its memory cgroup went from "
                f"{before} to {self._kills})"
            )
        return text


def oom_kills(cgroup_root: str = "/sys/fs/cgroup", self_cgroup: str = "/proc/self/cgroup") -> int:
    """How many processes of our memory cgroup the kernel has killed; 0 where that is not told."""
    for path in _counters(cgroup_root, self_cgroup):
        try:
            with open(path, encoding="ascii") as file:
                counts = dict(line.split(maxsplit=1) for line in file)
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _counters(root: str, self_cgroup: str) -> list[str]:
    """Where the count may be: the unified hierarchy first, then the older one."""
    found = []
    try:
        with open(self_cgroup, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        lines = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            found.append(f"{root}{path.rstrip('/')}/memory.events")
        elif "memory" in controllers.split(","):
            found.append(f"{root}/memory{path.rstrip('/')}/memory.oom_control")
    # Inside a container the path above may be that of the machine.
    return [*found, f"{root}/memory.events", f"{root}/memory/memory.oom_control"]
