"""What remote functions find in the proc that they run in: their rank in meshes, and groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from monarch.tensors.worker.definitions import WorkerDefinitions
from monarch.tensors.worker.groups import MeshShape, ProcessGroups


class _Worker(NamedTuple):
    rank: int
    definitions: WorkerDefinitions
    groups: ProcessGroups


_current: list[_Worker] = []
_OF_USERS = -2
"""No stream of ours: the groups that remote functions get are theirs alone."""


def set_current(rank: int, definitions: WorkerDefinitions, groups: ProcessGroups) -> None:
    _current[:] = [_Worker(rank, definitions, groups)]


def current_rank() -> int:
    """The rank of this worker, among all of its controller's."""
    return _current[0].rank


def group_of_one() -> Any:
    """A process group of this worker alone."""
    worker = _current[0]
    return worker.groups.of((worker.rank,), _OF_USERS)


class WorkerDim(NamedTuple):
    """One dimension of a mesh, seen from a member: its rank along it, and the size."""

    rank: int
    size: int


class WorkerMesh:
    """What a remote function gets where a ``DeviceMesh`` was given: ``mesh.dims["dp"].rank``."""

    def __init__(self, shape: MeshShape) -> None:
        worker = _current[0]
        self.shape = shape
        where = shape.coordinates(worker.rank) or dict.fromkeys(shape.names, 0)
        sizes = dict(zip(shape.names, shape.sizes, strict=True))
        self.dims = {name: WorkerDim(where[name], sizes[name]) for name in shape.names}

    def group(self, *dims: str) -> Any:
        """The process group along ``dims``, one that ``process_group(dims)`` was given for."""
        worker = _current[0]
        return worker.groups.of(self.shape.peers(worker.rank, dims), _OF_USERS)

    def to_device_mesh(self, device_type: str = "cpu") -> Any:
        """The same mesh as ``torch.distributed.DeviceMesh``, for DTensor: of all its dimensions.

        All members call it at the same place.
        """
        from torch.distributed.device_mesh import DeviceMesh

        if len(self.shape.names) == 1:
            only = self.shape.names[0]
            return DeviceMesh.from_group(self.group(only), device_type, mesh_dim_names=(only,))
        ranks = self.shape.peers(_current[0].rank, self.shape.names)
        return DeviceMesh.from_group(
            [self.group(name) for name in self.shape.names],
            device_type,
            mesh=torch.tensor(ranks).reshape(self.shape.sizes),
            mesh_dim_names=self.shape.names,
        )


def received_mesh(*shape: Any) -> WorkerMesh:
    return WorkerMesh(MeshShape(*shape))


def received_group(shape: tuple[Any, ...], dims: tuple[str, ...]) -> Any:
    """What a remote function gets where a ``RemoteProcessGroup`` was given."""
    worker = _current[0]
    mesh = MeshShape(*shape)
    if mesh.coordinates(worker.rank) is None:
        return None
    return worker.groups.of(mesh.peers(worker.rank, dims), _OF_USERS)
