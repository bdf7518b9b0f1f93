"""Places replica groups on hosts, and starts and ends their processes and the lighthouse's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monarch.actor import ProcMesh
from monarch.config import configured
from monarch_sync.words import counted

PRELOAD = ("monarch_recipes.replicas.preload",)
ENVIRONMENT = {"RUST_LOG": "warn"}
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class GroupPlace:
    """The hosts of a group: consecutive ones, with the same number of its procs on each.

    ``first_slot`` is the number of other groups' procs before it on its first host.
    """

    first_host: int
    num_hosts: int
    procs_per_host: int
    first_slot: int

    @property
    def num_procs(self) -> int:
        return self.num_hosts * self.procs_per_host

    @property
    def hosts(self) -> range:
        """The numbers of its hosts."""
        return range(self.first_host, self.first_host + self.num_hosts)


def place_groups(
    num_groups: int, procs_per_group: int, num_hosts: int, procs_per_host: int
) -> list[GroupPlace]:
    """Return a place for each group. Raises ValueError if there are too few procs.

    A group that fits on one host is never split, so that the loss of a host costs as few groups as
    possible. A larger group gets hosts of its own, with the same number of procs on each.
    """
    if procs_per_group <= procs_per_host:
        on_each = procs_per_host // procs_per_group
        places = [
            GroupPlace(host, 1, procs_per_group, number * procs_per_group)
            for number in range(on_each)
            for host in range(num_hosts)
        ]
    else:
        span = -(-procs_per_group // procs_per_host)
        if procs_per_group % span:
            raise ValueError(
                f"a group of {procs_per_group} procs cannot be shared evenly by {span} hosts of "
                f"{procs_per_host} procs each"
            )
        places = [
            GroupPlace(first, span, procs_per_group // span, 0)
            for first in range(0, num_hosts - span + 1, span)
        ]
    if len(places) < num_groups:
        raise ValueError(
            f"{num_groups} groups of {counted(procs_per_group, 'proc')} need more than "
            f"{counted(num_hosts, 'host')} with {counted(procs_per_host, 'proc')} each: there "
            f"is room for {len(places)}. Give fewer groups, or more procs with --procs"
        )
    return places[:num_groups]


def most_procs_on_a_host(places: Sequence[GroupPlace]) -> int:
    """Return the largest number of procs that one host has, over all groups."""
    counts: Counter[int] = Counter()
    for place in places:
        for host in place.hosts:
            counts[host] += place.procs_per_host
    return max(counts.values())


def describe_places(places: Sequence[GroupPlace], num_procs: int) -> dict[str, Any]:
    """Return the hosts of each group as text by name, and the number of idle procs of
    ``num_procs``.
    """
    rows = {
        f"group {number}": f"{counted(place.num_procs, 'proc')} on "
        + ", ".join(f"host {host}" for host in place.hosts)
        for number, place in enumerate(places)
    }
    num_idle = num_procs - sum(place.num_procs for place in places)
    if num_idle:
        rows["idle"] = f"{counted(num_idle, 'proc')} of no group: num_groups or procs_per_group"
    return rows


async def end_procs(*meshes: ProcMesh | None) -> None:
    """Kill these procs, and wait up to 5 s for that, since a host that is gone does not answer."""
    # No time to clean up: the state is saved, or the process hangs.
    with configured(stop_timeout_seconds=0.0):
        stops = [mesh.stop().as_asyncio() for mesh in meshes if mesh is not None]
    if stops:
        await asyncio.wait(stops, timeout=_STOP_SECONDS)
    for stop in stops:
        if stop.done() and not stop.cancelled():
            stop.exception()  # Otherwise asyncio would print it.
