"""Whether a host has room for copies of the state, and the reason if it has not.

The memory is anonymous (a memfd): the size of ``/dev/shm`` does not limit it. The machine's memory
does, and the limits of the cgroups that the process is in.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monarch_sync.words import byte_size

ROOM = 3
"""A process copies a tensor into its own memory, or its GPU's, where so many more would fit."""

# A copy must leave this much free, and this share of its own size.
_LEFT_BYTES = 512 * 2**20
_LEFT_SHARE = 0.02


@dataclass(frozen=True)
class HostRoom:
    """Bytes that are still free: ``available`` of the machine; ``in_cgroup`` up to the lowest limit
    of a cgroup; ``lockable``, which may be pinned.
    """

    available: float = math.inf
    in_cgroup: float = math.inf
    lockable: float = math.inf


@dataclass(frozen=True)
class RoomVerdict:
    """Whether a copy of the state fits into a host's memory.

    If it does not fit, ``why`` says, with numbers, which memory is short. ``may_be_pinned``:
    pinning it is within the limit of locked memory.
    """

    fits: bool
    may_be_pinned: bool = True
    why: str = ""


def verdict_on_room(num_bytes: int, num_ranks: int, room: HostRoom) -> RoomVerdict:
    """Decide whether each of the ``num_ranks`` ranks of a host may allocate ``num_bytes``."""
    needed = num_bytes * num_ranks
    reserve = _LEFT_BYTES + _LEFT_SHARE * needed
    limits = (
        (room.available, "the host has {} free"),
        (room.in_cgroup, "the limit of its cgroup leaves {}"),
    )
    for free, text in limits:
        if needed and needed + reserve > free:
            ranks = f" for {num_ranks} ranks" if num_ranks > 1 else ""
            why = (
                f"a copy of the state in the host's memory takes {byte_size(needed)}{ranks}, and "
                f"{text.format(byte_size(max(0, int(free))))}"
            )
            return RoomVerdict(False, why=why)
    return RoomVerdict(True, may_be_pinned=num_bytes <= room.lockable)


def look_at_room() -> HostRoom:
    """Return the current room of this process's host."""
    lockable, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return HostRoom(
        available=available_bytes(),
        in_cgroup=room_in_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        lockable=math.inf if lockable == resource.RLIM_INFINITY else float(lockable),
    )


def available_bytes() -> float:
    """Return how many bytes of memory the machine has available; infinity if it is not known."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return math.inf


def room_in_cgroups(membership: Path, root: Path) -> float:
    """Return the fewest bytes left under a memory limit of this process's cgroup or its parents.

    ``membership`` is the process's file ``cgroup``, ``root`` the folder of cgroups (v1 or v2).
    Returns infinity if there is no limit.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    free = math.inf
    for entry in lines:
        _, controllers, path = entry.split(":", 2)
        if not controllers:
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            base = root / "memory"
        else:
            continue
        for folder in _upwards(base, path):
            free = min(free, _left_in(folder, *names))
    return free


def _upwards(base: Path, path: str) -> Iterator[Path]:
    folder = base / path.lstrip("/")
    if not folder.is_dir():
        folder = base  # In a container, its own cgroup is the root of what it sees.
    while True:
        yield folder
        if folder == base or base not in folder.parents:
            return
        folder = folder.parent


def _left_in(folder: Path, limit: str, usage: str, reclaimable: str) -> float:
    try:
        limit_text = (folder / limit).read_text().strip()
        if limit_text == "max" or int(limit_text) >= 2**62:
            return math.inf
        used = int((folder / usage).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(limit_text) - used + int(stats.get(reclaimable, 0))
    except (OSError, ValueError):
        return math.inf
