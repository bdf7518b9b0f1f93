"""The handle that a program has for one local tensor in each proc of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from monarch.tensors.client.ambient import TensorStream
from monarch.tensors.client.tracebacks import here
from monarch.tensors.core.metas import Meta, meta_of
from monarch.tensors.core.storages import Storage

_new: Any = torch.Tensor._make_wrapper_subclass
_plain_data: Any = torch.Tensor.data


class Aliases(NamedTuple):
    """The tensors that share memory, by their numbers at the workers."""

    aliases: frozenset[int]


class Tensor(torch.Tensor):  # type: ignore[misc]
    """A handle for local tensors of one shape, one in each proc of ``mesh``, with different values.

    Torch operations on it run on all of them. The controller has no values: ``monarch.fetch_shard``
    gets those of one proc.
    """

    mesh: Any
    stream: TensorStream
    #: The number of the local tensors at the workers; ``None`` once it is released.
    _ref: int | None
    _meta: Meta
    _storage: Storage
    #: The value, if it is one number that follows from constants, the same on all ranks.
    _known: torch.Tensor | None = None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # No mesh is active: the operation runs on the mesh of its tensors.
        return _first(args, kwargs).mesh.dispatch(func, args, kwargs or {})

    @property
    def ref(self) -> int | None:
        """Return the tensor's number at the workers, or ``None`` once it is released."""
        return self._ref

    @property
    def dropped(self) -> bool:
        return self._storage.dropped is not None

    @property
    def _aliases(self) -> Aliases:
        return Aliases(frozenset(self._storage.all_refs(self._ref)) if self._ref else frozenset())

    def drop(self) -> None:
        """Free it now, with all tensors that share its memory. A later use of any of them raises
        ``TypeError``."""
        if self._storage.dropped is None:
            refs = self._storage.all_refs(self._ref) if self._ref is not None else []
            self._storage.drop("tensor is dropped at: \n" + here())
            self.mesh.frees[self.stream.number].extend(refs)

    @property
    def data(self) -> Any:
        """Like ``torch.Tensor.data``. Setting it makes this handle refer to another tensor."""
        return _plain_data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        with torch.no_grad():
            other = value.detach()  # Another handle, whose reference this one takes over.
        _plain_data.__set__(self, value)
        self._release()
        self._known = value._known
        for name in ("mesh", "stream", "_meta", "_storage", "_ref"):
            setattr(self, name, getattr(other, name))
        other._ref = None

    def reduce(
        self,
        dims: str | Sequence[str] = (),
        reduction: str = "sum",
        scatter: bool = False,
        mesh: Any = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Combine the shards along mesh dimensions ``dims`` (all of them for ``()``).

        ``reduction`` is sum, avg, product, min, max, band, bor, bxor or stack. All ranks along
        ``dims`` get the same result. "stack" puts the shards side by side in a new first dimension.
        ``scatter`` gives rank k the k-th row of the result: the first dimension must have the size
        of the mesh dimension. ``out`` receives the result. ``mesh`` must be ``None``: use
        ``to_mesh`` for the result.
        """
        return self.mesh.reduce(  # type: ignore[no-any-return]
            self, dims, reduction, scatter=scatter, inplace=False, mesh=mesh, out=out
        )

    def reduce_(
        self,
        dims: str | Sequence[str] = (),
        reduction: str = "sum",
        scatter: bool = False,
        mesh: Any = None,
    ) -> Tensor:
        """Combine the shards as ``reduce`` does, in place, and return this tensor."""
        return self.mesh.reduce(  # type: ignore[no-any-return]
            self, dims, reduction, scatter=scatter, inplace=True, mesh=mesh, out=None
        )

    def slice_mesh(self, **dims: Any) -> Any:
        """Return the shards on a part of the mesh: ``t.slice_mesh(hosts=0).to_mesh(other)``."""
        return self.mesh.slice_of(self, **dims)

    def to_mesh(self, mesh: Any, stream: TensorStream | None = None) -> Tensor:
        """Return a copy on another mesh, each shard at the same coordinates.

        Along dimensions that only ``mesh`` has, each coordinate gets a copy.
        """
        return self.mesh.slice_of(self).to_mesh(mesh, stream)  # type: ignore[no-any-return]

    @property
    def _fake(self) -> torch.Tensor:
        """Return a tensor without values that has the shape, strides, dtype and device of this one.

        Tensors that share memory get fakes that share memory. Of these, tensors with the same
        ``Meta`` get the same fake.
        """
        return self.mesh.fake_of(self)

    # Python replaces the text of a TypeError that an operator raises. Methods keep it.
    __add__ = __radd__ = torch.Tensor.add
    __mul__ = __rmul__ = torch.Tensor.mul
    __sub__ = torch.Tensor.sub
    __truediv__ = torch.Tensor.div
    __matmul__ = torch.Tensor.matmul
    __pow__ = torch.Tensor.pow
    __lt__ = torch.Tensor.lt
    __le__ = torch.Tensor.le
    __gt__ = torch.Tensor.gt
    __ge__ = torch.Tensor.ge
    __iadd__ = torch.Tensor.add_
    __isub__ = torch.Tensor.sub_
    __imul__ = torch.Tensor.mul_
    __itruediv__ = torch.Tensor.div_

    def tolist(self) -> Any:
        """Return the number in a tensor if it was computed here from constants.

        Raises ``TypeError`` for all other tensors.
        """
        if self.numel() == 1 and self._known is not None and self._storage.is_known:
            return self._known.tolist()
        raise TypeError(
            "a distributed tensor has no values here: monarch.fetch_shard(t).result() gives those "
            "of one proc, as a local tensor"
        )

    def numpy(self, *, force: bool = False) -> Any:
        """Return the number in a tensor if it was computed here from constants.

        Raises ``TypeError`` for all other tensors.
        """
        return self.tolist()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"monarch.Tensor(mesh={self.mesh}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def _release(self) -> None:
        """Free the handle's tensors at the workers."""
        # A handle that is not complete has no reference; a moved one has given it away.
        attributes = self.__dict__
        ref = attributes.get("_ref")
        if ref is not None:
            attributes["_ref"] = None
            storage = attributes["_storage"]
            if storage.refs is not None:
                storage.refs.discard(ref)
            if storage.dropped is None:
                attributes["mesh"].frees[attributes["stream"].number].append(ref)

    __del__ = _release

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.mesh.pickled(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch.no_grad():
            copied = self.detach().clone()
        copied.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


def new_maker(meta: Meta) -> Callable[[], Any]:
    """Return a function that makes handles with the shape, dtype and device of ``meta``."""
    return functools.partial(
        _new,
        Tensor,
        meta.size,
        strides=meta.stride,
        storage_offset=meta.offset,
        dtype=meta.dtype,
        device=meta.device,
        layout=meta.layout,
    )


def new_handle(meta: Meta, ref: int, mesh: Any, stream: TensorStream, shared: Any = None) -> Tensor:
    """Make a handle with the shape, dtype and device of ``meta``.

    If ``shared`` is a tensor, the new handle views the memory of ``shared``.
    """
    maker = meta.maker
    if maker is None:
        maker = meta.maker = new_maker(meta)
    tensor: Tensor = maker()
    tensor._meta = meta
    tensor.mesh = mesh
    tensor.stream = stream
    if shared is None:
        tensor._storage = Storage()
    else:
        tensor._storage = shared._storage
        shared._storage.share(shared._ref, ref, shared._meta)
    tensor._ref = ref
    return tensor


def update_meta(tensor: Tensor) -> None:
    """Update the shape and strides of a handle after an operation has changed them."""
    tensor._meta = meta_of(tensor)


def _first(args: Any, kwargs: Any) -> Any:
    """Return a distributed tensor among the arguments: torch has checked that there is one."""
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (list, tuple, dict)):
            inner = _first((), value) if isinstance(value, dict) else _first(value, None)
            if inner is not None:
                return inner
    return None
