"""Which hosts a replica group gets, one where it fits on one; the processes of groups and of the
lighthouse: what they begin with, and their end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monarch.actor import ProcMesh
from monarch.config import configured
from monarch_sync.words import counted


@dataclass(frozen=True)
class GroupPlace:
    """Consecutive hosts, with as many procs of the group on each.

    ``first_slot`` counts the procs of other groups on its first host.
    """

    first_host: int
    num_hosts: int
    procs_per_host: int
    first_slot: int

    @property
    def num_procs(self) -> int:
        return self.num_hosts * self.procs_per_host


def place_groups(
    num_groups: int, procs_per_group: int, num_hosts: int, procs_per_host: int
) -> list[GroupPlace]:
    """A place for every group; ValueError when there is too little of it.

    A group that fits on a host is never split, so that the loss of a host costs as few groups as
    can be. One that is larger gets hosts of its own, the same number of procs on each.
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
            f"{num_groups} groups of {_procs(procs_per_group)} need more than "
            f"{num_hosts} host{'s' * (num_hosts > 1)} with {_procs(procs_per_host)} each: there "
            f"is room for {len(places)}. Give fewer groups, or more procs with --procs"
        )
    return places[:num_groups]


def most_procs_on_a_host(places: Sequence[GroupPlace]) -> int:
    """How many procs of all groups the fullest host has."""
    counts: Counter[int] = Counter()
    for place in places:
        for host in range(place.first_host, place.first_host + place.num_hosts):
            counts[host] += place.procs_per_host
    return max(counts.values())


def describe_places(places: Sequence[GroupPlace], num_procs: int) -> dict[str, Any]:
    """The hosts of each group, and the idle procs of ``num_procs`` in all, in words."""
    rows = {
        f"group {number}": f"{counted(place.num_procs, 'proc')} on "
        + ", ".join(f"host {place.first_host + i}" for i in range(place.num_hosts))
        for number, place in enumerate(places)
    }
    num_idle = num_procs - sum(place.num_procs for place in places)
    if num_idle:
        rows["idle"] = f"{counted(num_idle, 'proc')} of no group: num_groups or procs_per_group"
    return rows


def _procs(number: int) -> str:
    return f"{number} proc{'s' * (number > 1)}"


PRELOAD = ("monarch_recipes.replicas.preload",)
ENVIRONMENT = {"RUST_LOG": "warn"}
_STOP_SECONDS = 5.0


async def end_procs(*meshes: ProcMesh | None) -> None:
    """Kill procs, and wait a little for that: a host that is gone does not answer."""
    ends = []
    # All that is worth saving has been saved, and a process that hangs has no last words.
    with configured(stop_timeout_seconds=0.0):
        for mesh in meshes:
            if mesh is not None:
                ends.append(mesh.stop().as_asyncio())
    if ends:
        await asyncio.wait(ends, timeout=_STOP_SECONDS)
    for one in ends:
        if one.done() and not one.cancelled():
            one.exception()
