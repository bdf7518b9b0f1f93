"""Which processes a command starts: on which hosts, how many on each, and what each is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from monarch.errors import JobError
from monarch.job.job import JobTrait
from monarch.mesh import Extent, Point
from monarch.wire.address import ProcAddress

HOSTS = "hosts"  # the dimension of a mesh of hosts


class JobHost(NamedTuple):
    """A host of a job: the ``place`` in its mesh, and the URL of its agent."""

    mesh: str
    place: int
    name: str
    url: str


class Rank(NamedTuple):
    """One process: its place, and its host."""

    number: int
    point: Mapping[str, int]
    sizes: Mapping[str, int]
    host: ProcAddress
    host_name: str

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that tell a process its rank."""
        found = {"MONARCH_RANK": str(self.number), "MONARCH_SIZE": str(prod(self.sizes.values()))}
        for dim, index in self.point.items():
            found[f"MONARCH_RANK_{dim}"] = str(index)
            found[f"MONARCH_SIZE_{dim}"] = str(self.sizes[dim])
        return found


def hosts_of(job: JobTrait) -> list[JobHost]:
    """The hosts of a job, mesh by mesh, as its state tells of them."""
    found: list[JobHost] = []
    num: dict[str, int] = {}
    for host in getattr(job, "hosts", ()):
        index = num.get(host.mesh, 0)
        num[host.mesh] = index + 1
        found.append(JobHost(host.mesh, index, host.name, host.url))
    return found


def chosen(hosts: Sequence[JobHost], mesh: str | None, *, only_one: bool) -> list[JobHost]:
    """The hosts of ``mesh``, or of all meshes; ``only_one``: the first. Raises ``JobError``."""
    names = list(dict.fromkeys(host.mesh for host in hosts))
    if mesh is not None and mesh not in names:
        raise JobError(f"there is no mesh {mesh!r} in this allocation; it has: {', '.join(names)}")
    found = [host for host in hosts if mesh in (None, host.mesh)]
    return found[:1] if only_one else found


def ranks_on(
    hosts: Sequence[tuple[ProcAddress, str]],
    per_host: Mapping[str, int],
    point: Mapping[str, int] | None = None,
) -> list[Rank]:
    """The processes on these hosts, each an address with a name; of them those at ``point``, which
    may leave dimensions out. Raises ``JobError``."""
    if HOSTS in per_host:
        raise JobError(f"{HOSTS!r} is the dimension of the hosts; name another, as in gpus=4")
    if wrong := [dim for dim, size in per_host.items() if size < 1]:
        raise JobError(f"{wrong[0]!r} needs at least one process a host")
    sizes = {HOSTS: len(hosts), **per_host}
    extent = Extent(tuple(sizes), tuple(sizes.values()))
    each = prod(per_host.values())
    wanted = dict(point or {})
    for dim, index in wanted.items():
        if dim not in sizes:
            raise JobError(f"there is no dimension {dim!r} here; there are: {', '.join(sizes)}")
        if not 0 <= index < sizes[dim]:
            raise JobError(f"{dim}={index} is not there: {dim} go from 0 to {sizes[dim] - 1}")
    found = []
    for number in range(extent.nelements):
        at = Point(number, extent)
        address, name = hosts[number // each]
        if all(at[dim] == index for dim, index in wanted.items()):
            found.append(Rank(number, dict(at), sizes, address, name))
    return found


def parse_point(text: str) -> dict[str, int]:
    """``hosts=1,gpus=0``, or the number of a host. Raises ``JobError``."""
    found: dict[str, int] = {}
    for part in text.split(","):
        dim, equals, number = part.strip().rpartition("=")
        if not number.isdecimal() or (equals and not dim):
            raise JobError(f"{text!r} is no point: give one as hosts=1 or hosts=1,gpus=0")
        found[dim or HOSTS] = int(number)
    return found
