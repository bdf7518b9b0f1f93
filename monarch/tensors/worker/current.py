"""Names for remote functions, of the proc that they run in: their rank in meshes, and groups."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import torch

from monarch.tensors.worker.definitions import WorkerDefinitions
from monarch.tensors.worker.groups import MeshShape, ProcessGroups


class _Worker(NamedTuple):
    rank: int
    definitions: WorkerDefinitions
    groups: ProcessGroups


_current: list[_Worker] = []


class _Asked(threading.local):
    is_alone = False


_asked = _Asked()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within, in this thread, groups that arrive are of this worker only: the others do not run
    what is found out here."""
    _asked.is_alone = True
    try:
        yield
    finally:
        _asked.is_alone = False


def set_current(rank: int, definitions: WorkerDefinitions, groups: ProcessGroups) -> None:
    _current[:] = [_Worker(rank, definitions, groups)]


def current_rank() -> int:
    """The rank of this worker, among all of its controller's."""
    return _current[0].rank


def group_of_one() -> Any:
    """A process group of this worker alone."""
    return _current[0].groups.alone()


class WorkerDim(NamedTuple):
    """One dimension of a mesh, seen from a member: its rank along it, and the size."""

    rank: int
    size: int


class WorkerMesh:
    """The form in which a remote function gets a ``DeviceMesh``: ``mesh.dims["dp"].rank``."""

    def __init__(self, shape: MeshShape, use: Hashable, is_alone: bool = False) -> None:
        worker = _current[0]
        self.shape = shape
        self._use = use
        self._is_alone = is_alone
        where = shape.coordinates(worker.rank) or dict.fromkeys(shape.names, 0)
        sizes = dict(zip(shape.names, shape.sizes, strict=True))
        self.dims = {name: WorkerDim(where[name], sizes[name]) for name in shape.names}

    def alone(self) -> WorkerMesh:
        """The same place, with groups of this worker only."""
        return WorkerMesh(self.shape, self._use, is_alone=True)

    def group(self, *dims: str) -> Any:
        """The process group along one of its dimensions, or along several that the program has
        asked ``process_group(dims)`` for.

        Raises ``KeyError`` for others.
        """
        worker = _current[0]
        if self._is_alone:
            return worker.groups.alone()
        try:
            return worker.groups.of(self.shape.peers(worker.rank, dims), self._use)
        except KeyError:
            raise KeyError(
                f"no process group along {dims} has been made: give the function "
                f"mesh.process_group({dims}) too"
            ) from None

    def to_device_mesh(self, device_type: str = "cpu") -> Any:
        """The same mesh as ``torch.distributed.DeviceMesh``, for DTensor: of all its dimensions.

        All members call it at the same place.
        """
        from torch.distributed.device_mesh import DeviceMesh

        groups = [self.group(name) for name in self.shape.names]
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=self.shape.names)
        ranks, sizes = self.shape.peers(_current[0].rank, self.shape.names), self.shape.sizes
        if self._is_alone:
            ranks, sizes = (_current[0].rank,), (1,) * len(groups)
        return DeviceMesh.from_group(
            groups,
            device_type,
            mesh=torch.tensor(ranks).reshape(sizes),
            mesh_dim_names=self.shape.names,
        )


def received_mesh(shape: tuple[Any, ...], use: Hashable) -> WorkerMesh:
    return WorkerMesh(MeshShape(*shape), use, _asked.is_alone)


def received_group(shape: tuple[Any, ...], dims: tuple[str, ...], use: Hashable) -> Any:
    """The form in which a remote function gets a ``RemoteProcessGroup``; ``None`` on other
    ranks."""
    worker = _current[0]
    mesh = MeshShape(*shape)
    if mesh.coordinates(worker.rank) is None:
        return None
    if _asked.is_alone:
        return worker.groups.alone()
    return worker.groups.of(mesh.peers(worker.rank, dims), use)
