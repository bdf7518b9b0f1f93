"""`monarch.common.function_caching`: which tensors share memory, as a pattern to compare.

A handle's pattern is that of its fake: ``TensorGroup([t._fake for t in tensors])``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from monarch.tensors.api import recordings
from monarch.tensors.client.recording import Recording
from monarch.tensors.client.tensor import Tensor


class AliasOf(NamedTuple):
    """The tensor whose memory is shared: number ``offset`` of a group of tensors.

    Group 0 is the tensor's own group, -1 the group's parent, and so on.
    """

    group: int
    offset: int


class OwnStorage(NamedTuple):
    """Memory of ``numel`` elements that no earlier tensor has."""

    numel: int


class PatternEntry(NamedTuple):
    """The size, strides, type and device of a tensor in a pattern, and whose memory it has."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: torch.dtype
    layout: torch.layout
    device: torch.device
    storage: AliasOf | OwnStorage


class TensorGroupPattern(NamedTuple):
    """The size, strides, type and device of each tensor of a group, and which share memory."""

    entries: tuple[PatternEntry, ...]

    def empty(self, parents: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Make new tensors in this pattern.

        ``parents`` are the groups that it refers to, the outermost first.
        """
        tensors: list[torch.Tensor] = []
        for entry in self.entries:
            storage = entry.storage
            if isinstance(storage, OwnStorage):
                base = torch.empty(
                    storage.numel, dtype=entry.dtype, layout=entry.layout, device=entry.device
                )
            else:
                base = (parents[storage.group] if storage.group else tensors)[storage.offset]
            tensors.append(torch.as_strided(base, entry.size, entry.stride, entry.storage_offset))
        return tensors


class TensorGroup:
    """Tensors, with the pattern in which they share memory.

    They may also share it with tensors of ``parent`` and of its parents.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], parent: TensorGroup | None = None) -> None:
        self.parent = parent
        self.tensors = tensors
        #: The first tensor of each storage.
        self._first: dict[int, int] = {}
        self.pattern = TensorGroupPattern(
            tuple(self._entry(n, tensor) for n, tensor in enumerate(tensors))
        )

    def _entry(self, offset: int, tensor: torch.Tensor) -> PatternEntry:
        storage = tensor.untyped_storage()
        owner: AliasOf | OwnStorage | None = self._alias(storage._cdata)
        if owner is None:
            self._first[storage._cdata] = offset
            owner = OwnStorage(storage.nbytes() // tensor.element_size())
        return PatternEntry(
            size=tuple(tensor.size()),
            stride=tuple(tensor.stride()),
            storage_offset=int(tensor.storage_offset()),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=tensor.device,
            storage=owner,
        )

    def _alias(self, storage: int) -> AliasOf | None:
        group: TensorGroup | None = self
        above = 0
        while group is not None:
            if storage in group._first:
                return AliasOf(above, group._first[storage])
            group, above = group.parent, above - 1
        return None


class RecordedFunction:
    """A function that was recorded for some arguments, and can be replayed for similar ones."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        inputs = _tensors((args, kwargs))
        self.to_verify = Recording(function, (args, kwargs), inputs)
        self.to_verify.define()
        self.captures_group = TensorGroup([tensor._fake for tensor in self.to_verify.captured])
        group = TensorGroup([tensor._fake for tensor in inputs], self.captures_group)
        self.inputs_pattern = group.pattern

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the function's result for these arguments, with one message to the workers."""
        return self.to_verify.replay(_tensors((args, kwargs)))

    def matches(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the recording fits these inputs (tensors without values).

        It does if their sizes, strides, types and devices are those of the recorded inputs, and if
        they share memory in the same way, with each other and with captured tensors.
        """
        return self.inputs_pattern == TensorGroup(inputs, self.captures_group).pattern


def record_and_define(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RecordedFunction:
    """Record ``fn`` for these arguments, and send the recording to the workers."""
    return RecordedFunction(fn, args, kwargs)


def compile(fn: Any = None, verify: bool = True) -> Any:
    """Like ``monarch.compile``, but call the recording function that Monarch's own module has.

    So tests can replace that function, to count its calls.
    """
    return recordings.compile(fn, verify, record=_record_by_address)


def _record_by_address(
    function: Callable[..., Any], args: Any, kwargs: Any, inputs: list[Tensor]
) -> Recording:
    record = import_module("monarch.common._coalescing")._record_and_define
    recorded: RecordedFunction = record(function, args, kwargs)
    return recorded.to_verify


def hashable_tensor_flatten(args: Any, kwargs: Any) -> tuple[list[torch.Tensor], Any]:
    """Return the tensors among arguments, and a hashable key of the rest."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = tuple(None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves)
    return tensors, (rest, str(spec))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
