"""A mesh of workers, on which torch operations run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.mesh import MeshTrait, Point, Shape, Slice
from monarch.tensors.client import collectives, streams
from monarch.tensors.client.ambient import Activation, TensorStream, ambient
from monarch.tensors.client.client import Client
from monarch.tensors.client.dispatch import AmbientMode, dispatch_operator
from monarch.tensors.client.handing import lend_to_actors
from monarch.tensors.client.issuing import builtin
from monarch.tensors.client.propagation import FAKE, contiguous_meta, fake_of, view_of
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.batch import EVERYBODY
from monarch.tensors.core.keys import compare_by_identity
from monarch.tensors.core.templates import FRESH, Result
from monarch.tensors.worker.current import received_group, received_mesh

Dims = Sequence[str]

MeshKey = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], int]
"""The names, sizes, strides and offset of a mesh."""


def _key_of(shape: Shape) -> MeshKey:
    ndslice = shape.ndslice
    return tuple(shape.labels), tuple(ndslice.sizes), tuple(ndslice.strides), ndslice.offset


class DeviceMesh(MeshTrait):
    """A mesh of procs that torch operations run on.

    Equal slices of one mesh are the same object.
    """

    def __init__(self, client: Client, shape: Shape, meshes: dict[Any, DeviceMesh]) -> None:
        self.client = client
        self._shape = shape
        #: All meshes of the client, by their keys.
        self._meshes = meshes
        self.names = tuple(shape.labels)
        is_whole = list(shape.ndslice) == list(range(client.num_ranks))
        if is_whole and not meshes:
            self.number = EVERYBODY
            client.define_everybody("mesh", *self._key())
        else:
            self.number = client.define("mesh", *self._key())
        by_stream: dict[int, list[int]] = defaultdict(list)
        #: The released references of this mesh, by stream, which the client will send.
        self.frees = client.frees.setdefault(self.number, by_stream)

    @classmethod
    def of_client(cls, client: Client, shape: Shape) -> DeviceMesh:
        """Return the mesh of all workers of ``client``."""
        mesh = cls(client, shape, {})
        mesh._meshes[mesh._key()] = mesh
        client.everybody = mesh
        return mesh

    def _key(self) -> MeshKey:
        return _key_of(self._shape)

    # Geometry

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self.names

    def _new_with_shape(self, shape: Shape) -> DeviceMesh:
        key = _key_of(shape)
        if key not in self._meshes:
            self._meshes[key] = DeviceMesh(self.client, shape, self._meshes)
        return self._meshes[key]

    @property
    def processes(self) -> Slice:
        """Return the ranks of the members, among all workers."""
        return self._shape.ndslice

    @property
    def ndim(self) -> int:
        return len(self.names)

    def __call__(self, **dims: Any) -> DeviceMesh:
        """Slice the mesh: the older spelling of ``slice``."""
        return self.slice(**dims)

    def process_idx(self) -> Tensor:
        """Return a tensor with each member's rank among all workers.

        Like the result of ``rank``, it is a tensor of the active mesh if that is a part of this
        mesh.
        """
        index = self._rank_tensor(None)
        for name, stride in zip(self.names, self.processes.strides, strict=True):
            index = index + self._rank_tensor(name) * stride
        return index + self.processes.offset  # type: ignore[no-any-return]

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank of the member at these coordinates; a missing dimension counts as 0."""
        return self.processes.nditem([coordinates.get(name, 0) for name in self.names])

    def check_shard(self, shard: Mapping[str, int] | None) -> int:
        """Return the rank of the shard at the coordinates ``shard``; ``None`` is the first shard.

        Raises ``ValueError`` if some of the coordinates are missing, and ``IndexError`` if they are
        out of range.
        """
        if not shard:
            return self.processes.offset
        for name in self.names:
            if name not in shard:
                raise ValueError(
                    f"Missing key {name!r} in shard map. Need all of {list(self.names)}"
                )
        unknown = set(shard) - set(self.names)
        if unknown:
            raise ValueError(
                f"{self} does not have dimensions {sorted(unknown)}: give {list(self.names)}"
            )
        for name, coordinate in shard.items():
            if coordinate not in range(self.size(name)):
                raise IndexError(
                    f"{name}={coordinate!r} is out of range: {self} has a shard at each number "
                    f"from 0 to {self.size(name) - 1} of {name}"
                )
        return self.rank_at(shard)

    def stack(self, **dims: Any) -> DeviceMesh:
        raise NotImplementedError("stack: take the larger mesh from the start, and slice it")

    def rotate(self, **dims: Any) -> DeviceMesh:
        raise NotImplementedError("rotate: move tensors with to_mesh instead")

    def to_table(self) -> str:
        """Return a table of the members for people: rank and coordinates, a line for each."""
        lines = ["  ".join(("rank", *self.names))]
        for index, rank in enumerate(self.processes):
            point = Point(index, self.extent)
            lines.append("  ".join((str(rank).ljust(4), *map(str, point.values()))))
        return "\n".join(lines)

    def to_tensor(self) -> torch.Tensor:
        """Return the members' ranks as a local tensor with the mesh's dimensions."""
        with Activation(mesh=None):
            return torch.tensor(list(self.processes)).reshape(self.processes.sizes)

    # The active mesh and stream.

    def activate(self) -> Activation:
        """Run the torch operations of this thread on this mesh from now on.

        As a context manager, it does so until the end of the block.
        """
        self.client.check_alive()
        return Activation(mesh=self, mode=AmbientMode())

    def deactivate(self) -> None:
        """End an ``activate()`` that was called without ``with``."""
        if ambient.mesh is self:
            Activation(mesh=None)

    # Ranks and groups

    def rank(self, dims: str | Dims) -> Tensor:
        """Return an int64 tensor without dimensions that has each member's rank along ``dims``.

        Several dimensions are counted together, the last one fastest. The tensor is on the active
        mesh if that is a part of this mesh, else on this mesh. Raises ``KeyError`` for a dimension
        that the mesh does not have.
        """
        names = self._checked(dims)
        combined = self._rank_tensor(names[0] if names else None)
        for name in names[1:]:
            combined = combined * self.size(name) + self._rank_tensor(name)
        return combined

    def _checked(self, dims: str | Dims) -> tuple[str, ...]:
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        for name in names:
            if name not in self.names:
                raise KeyError(f"{self} does not have dimension {name!r}: use one of {self.names}")
        return names

    rank_tensor = rank

    @property
    def ranks(self) -> dict[str, Tensor]:
        """Return the ``rank`` tensor of each dimension, by name."""
        return {name: self.rank(name) for name in self.names}

    def _rank_tensor(self, name: str | None) -> Tensor:
        result = Result(FRESH, contiguous_meta((), torch.long, torch.device("cpu")))
        active = ambient.mesh
        is_part = (
            active is not None
            and active.client is self.client
            and set(active.processes) <= set(self.processes)
        )
        mesh, definition = active if is_part else self, ("rank_of", self.number, name)
        tensor: Tensor = builtin(mesh, ambient.stream, definition, results=[result])
        return tensor

    def process_group(self, dims: str | Dims) -> RemoteProcessGroup:
        """Return an argument that becomes the process group along ``dims`` in a remote function."""
        return RemoteProcessGroup(self, self._checked(dims))

    # The methods that tensors call on their mesh.

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return dispatch_operator(func, args, kwargs)

    def reduce(self, tensor: Tensor, dims: str | Dims, reduction: str, **how: Any) -> Any:
        return collectives.reduce(tensor, dims, reduction, **how)

    def slice_of(self, tensor: Tensor, **dims: Any) -> collectives.MeshSliceTensor:
        return collectives.MeshSliceTensor(tensor, self.slice(**dims) if dims else self)

    def lend_to_stream(self, tensor: Tensor, stream: TensorStream, mutable: bool) -> Any:
        return streams.lend(tensor, stream, mutable)

    def move_to_stream(self, tensor: Tensor, stream: TensorStream) -> Tensor:
        return streams.move(tensor, stream)

    def pickled(self, tensor: Tensor) -> Any:
        return lend_to_actors(tensor)

    def known_value(self, tensor: Tensor) -> Any:
        """Return the number in a tensor if it was computed here from constants, else ``None``."""
        with _disable_current_modes():
            return None if tensor._known is None else tensor._known.item()

    def fake_of(self, tensor: Tensor) -> torch.Tensor:
        storage, meta = tensor._storage, tensor._meta
        with Activation(mesh=None), FAKE:
            if storage.fakes is None:
                first = storage.meta or meta
                storage.fakes = {first: fake_of(first)}
            if meta not in storage.fakes:
                storage.fakes[meta] = view_of(next(iter(storage.fakes.values())), meta)
            return storage.fakes[meta]

    def exit(self) -> None:
        """Wait for all issued operations, and stop the workers.

        Raises the first failure that the program has not seen.
        """
        if ambient.mesh is not None and ambient.mesh.client is self.client:
            Activation(mesh=None)
        self.client.shutdown()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Only definitions are pickled: workers make a `WorkerMesh` of it, for the remote function.
        use = users_of(ambient.stream)
        for name in self.names:
            self.client.have_groups(self.number, (name,), use)
        return received_mesh, (self._key(), use)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        ranks = list(self.processes)
        shown = str(ranks) if len(ranks) <= 8 else f"[{ranks[0]}, ..., {ranks[-1]}]"
        return f"<DeviceMesh({sizes}), ranks {shown} of {self.client.name}>"


def users_of(stream: TensorStream) -> tuple[str, int]:
    """Return the ``use`` under which remote functions of a stream get their process groups.

    Streams run at the same time, so each stream needs groups of its own.
    """
    return ("users", stream.number)


class RemoteProcessGroup:
    """An argument of a remote function, in whose place the function gets a process group.

    The process group is one of torch.distributed.
    """

    def __init__(self, mesh: DeviceMesh, dims: tuple[str, ...]) -> None:
        self.device_mesh = mesh
        self.dims = dims
        self.dropped = False

    def drop(self) -> None:
        """Forbid further use as an argument. The procs keep the group for later requests."""
        self.dropped = True

    def size(self) -> int:
        return self.device_mesh.size(self.dims)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.dropped:
            raise RuntimeError(
                f"{self} was dropped: make it again, with process_group({self.dims}) of its mesh"
            )
        use = users_of(ambient.stream)
        mesh = self.device_mesh
        mesh.client.have_groups(mesh.number, self.dims, use)
        return received_group, (mesh._key(), self.dims, use)

    def __repr__(self) -> str:
        return f"RemoteProcessGroup({self.device_mesh}, {self.dims})"


compare_by_identity(DeviceMesh)
