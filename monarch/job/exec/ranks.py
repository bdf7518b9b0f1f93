"""The processes that a command starts: their hosts, their number on each, and their variables."""

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
    """A host of a job: ``place`` is its index in the mesh, ``url`` the address of its agent."""

    mesh: str
    place: int
    name: str
    url: str


class Rank(NamedTuple):
    """One process of a command: its rank, its point, and its host."""

    number: int
    point: Mapping[str, int]
    sizes: Mapping[str, int]
    host: ProcAddress
    host_name: str

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables from which the process learns its rank."""
        env = {"MONARCH_RANK": str(self.number), "MONARCH_SIZE": str(prod(self.sizes.values()))}
        for dim, index in self.point.items():
            env[f"MONARCH_RANK_{dim}"] = str(index)
            env[f"MONARCH_SIZE_{dim}"] = str(self.sizes[dim])
        return env


def hosts_of(job: JobTrait) -> list[JobHost]:
    """Return the hosts of a job, mesh by mesh, from its state."""
    hosts: list[JobHost] = []
    for host in getattr(job, "hosts", ()):
        index = sum(other.mesh == host.mesh for other in hosts)
        hosts.append(JobHost(host.mesh, index, host.name, host.url))
    return hosts


def chosen(hosts: Sequence[JobHost], mesh: str | None, *, only_one: bool) -> list[JobHost]:
    """Return the hosts of ``mesh`` (``None``: of all meshes); with ``only_one`` only the first.

    Raises ``JobError`` if there is no such mesh.
    """
    names = list(dict.fromkeys(host.mesh for host in hosts))
    if mesh is not None and mesh not in names:
        raise JobError(f"there is no mesh {mesh!r} in this allocation; it has: {', '.join(names)}")
    of_mesh = [host for host in hosts if mesh in (None, host.mesh)]
    return of_mesh[:1] if only_one else of_mesh


def ranks_on(
    hosts: Sequence[tuple[ProcAddress, str]],
    per_host: Mapping[str, int],
    point: Mapping[str, int] | None = None,
) -> list[Rank]:
    """Return the processes on these hosts, which are given as pairs of address and name.

    With ``point``, only those at it are returned; it may leave dimensions out. Raises ``JobError``
    for a dimension or a coordinate that does not exist, and for a size below 1 in ``per_host``.
    """
    if HOSTS in per_host:
        raise JobError(f"{HOSTS!r} is the dimension of the hosts; name another, as in gpus=4")
    if wrong := [dim for dim, size in per_host.items() if size < 1]:
        raise JobError(f"{wrong[0]!r} needs at least one process a host")
    sizes = {HOSTS: len(hosts), **per_host}
    extent = Extent(tuple(sizes), tuple(sizes.values()))
    chosen_at = point or {}
    for dim, index in chosen_at.items():
        if dim not in sizes:
            raise JobError(f"there is no dimension {dim!r} here; there are: {', '.join(sizes)}")
        if not 0 <= index < sizes[dim]:
            raise JobError(f"{dim}={index} is not there: {dim} go from 0 to {sizes[dim] - 1}")
    ranks = []
    for number in range(extent.nelements):
        coordinates = dict(Point(number, extent))
        address, name = hosts[coordinates[HOSTS]]
        if all(coordinates[dim] == index for dim, index in chosen_at.items()):
            ranks.append(Rank(number, coordinates, sizes, address, name))
    return ranks


def parse_point(text: str) -> dict[str, int]:
    """Parse ``hosts=1,gpus=0``, or the number of a host. Raises ``JobError`` for other text."""
    point: dict[str, int] = {}
    for part in text.split(","):
        dim, equals, number = part.strip().rpartition("=")
        if not number.isdecimal() or (equals and not dim):
            raise JobError(f"{text!r} is no point: give one as hosts=1 or hosts=1,gpus=0")
        point[dim or HOSTS] = int(number)
    return point
