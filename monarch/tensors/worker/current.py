"""The meshes and groups that a remote function sees in its proc."""

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


class _GroupScope(threading.local):
    #: Whether this thread is inside ``alone()``.
    is_alone = False


_scope = _GroupScope()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """During the ``with`` block, have this thread receive process groups of this worker alone.

    It is for code that the other workers do not run.
    """
    _scope.is_alone = True
    try:
        yield
    finally:
        _scope.is_alone = False


def set_current(rank: int, definitions: WorkerDefinitions, groups: ProcessGroups) -> None:
    _current[:] = [_Worker(rank, definitions, groups)]


def current_rank() -> int:
    """Return the rank of this worker, among all workers of its controller."""
    return _current[0].rank


def group_of_one() -> Any:
    """Return a process group of this worker alone."""
    return _current[0].groups.alone()


class WorkerDim(NamedTuple):
    """One dimension of a mesh, as a member sees it: its rank along the dimension, and the size."""

    rank: int
    size: int


class WorkerMesh:
    """The form in which a remote function gets a ``DeviceMesh``: ``mesh.dims["dp"].rank``."""

    def __init__(self, shape: MeshShape, use: Hashable, is_alone: bool = False) -> None:
        worker = _current[0]
        self.shape = shape
        self._use = use
        self._is_alone = is_alone
        coordinates = shape.coordinates(worker.rank) or dict.fromkeys(shape.names, 0)
        sizes = dict(zip(shape.names, shape.sizes, strict=True))
        self.dims = {name: WorkerDim(coordinates[name], sizes[name]) for name in shape.names}

    def alone(self) -> WorkerMesh:
        """Return the same member of the mesh, with process groups of this worker alone."""
        return WorkerMesh(self.shape, self._use, is_alone=True)

    def group(self, *dims: str) -> Any:
        """Return the process group along one dimension, or along several.

        For several, the program must have called ``process_group(dims)``; else ``KeyError`` is
        raised.
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
        """Return the same mesh, with all its dimensions, as ``torch.distributed.DeviceMesh``, for
        DTensor.

        All members must call it at the same point.
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
    return WorkerMesh(MeshShape(*shape), use, _scope.is_alone)


def received_group(shape: tuple[Any, ...], dims: tuple[str, ...], use: Hashable) -> Any:
    """Return the process group that a ``RemoteProcessGroup`` becomes; ``None`` on ranks outside its
    mesh."""
    worker = _current[0]
    mesh = MeshShape(*shape)
    if mesh.coordinates(worker.rank) is None:
        return None
    if _scope.is_alone:
        return worker.groups.alone()
    return worker.groups.of(mesh.peers(worker.rank, dims), use)
