"""A state as text and tensors, in the form from which another process can continue.

It may have what a checkpoint may have: tensors, numbers, texts, and containers of these. It has no
pickles, so reading it runs no code.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_ALIGNED = 64


class UnpackableState(TypeError):
    """The state has an object that no other process could get."""


class TensorPlace(NamedTuple):
    """The offset of a tensor in the memory of a copy, and the tensor's layout."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass
class PackedState:
    """A state in packed form. ``text`` has the containers and values of the state, and a number in
    place of each tensor.

    Two tensors with the same layout and memory have the same number.
    """

    text: str = "null"
    tensors: list[Any] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Any) -> PackedState:
        """Pack a state, and return it in packed form. Its tensors are shared, not copied.

        Raises ``UnpackableState``, which says what cannot be packed, and where it is.
        """
        packed = cls()
        packed.text = json.dumps(_packed(state, "", packed.number_of), separators=(",", ":"))
        return packed

    def number_of(self, tensor: Any) -> int:
        """Return the number of a tensor. A tensor without a number gets the next one."""
        key = (
            (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
            if tensor.numel()
            else id(tensor)
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.tensors)
            self.tensors.append(tensor.detach())
        return number

    def places(self, later: Collection[int] = ()) -> list[TensorPlace]:
        """Return the place of each tensor, by number, if all are put one after another.

        The tensors numbered in ``later`` go behind all others.
        """
        places: dict[int, TensorPlace] = {}
        offset = 0
        for number in sorted(range(len(self.tensors)), key=lambda n: (n in later, n)):
            tensor = self.tensors[number]
            num_bytes = tensor.numel() * tensor.element_size()
            shape = tuple(tensor.shape)
            stride = tensor.stride() if is_dense(tensor) else _rows(shape)
            name = str(tensor.dtype).removeprefix("torch.")
            places[number] = TensorPlace(name, shape, tuple(stride), offset, num_bytes)
            offset += -(-num_bytes // _ALIGNED) * _ALIGNED
        return [places[number] for number in range(len(places))]


def unpacked(text: str, tensors: Sequence[Any]) -> Any:
    """Return the state that ``text`` describes, with ``tensors`` in the places of their numbers."""
    return _unpacked(json.loads(text), tensors)


def tensor_at(memory: Any, place: TensorPlace) -> Any:
    """Return the tensor at a place in ``memory``, which is a tensor of bytes. The result is a view
    of that memory.
    """
    torch: Any = sys.modules["torch"]
    data = memory[place.offset : place.offset + place.num_bytes].view(getattr(torch, place.dtype))
    return data.as_strided(place.shape, place.stride, data.storage_offset())


def is_dense(tensor: Any) -> bool:
    """Whether the elements fill a range of memory, each once, in any order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    sizes = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size != 1
    )
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return True


def _rows(shape: Sequence[int]) -> list[int]:
    strides, span = [], 1
    for size in reversed(shape):
        strides.append(span)
        span *= max(size, 1)
    return strides[::-1]


_PLAIN = {bool, int, float, str, type(None)}
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: dict[str, Any] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}


def _packed(value: Any, path: str, number_of: Callable[[Any], int]) -> Any:
    """Return a value as JSON. A value of a kind that JSON lacks is returned as a list that begins
    with the name of the kind.
    """
    torch: Any = sys.modules["torch"]
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise UnpackableState(f"{path} is a tensor without plain memory")
        return ["tensor", number_of(value)]
    name = kind.__name__
    if _LISTS.get(name) is kind:
        return [name, [_packed(x, f"{path}[{n}]", number_of) for n, x in enumerate(value)]]
    if _DICTS.get(name) is kind:
        items = [
            [_packed(key, f"a key of {path}", number_of), _packed(x, f"{path}.{key}", number_of)]
            for key, x in value.items()
        ]
        attributes = vars(value) if kind is OrderedDict else {}  # such as a module's `_metadata`
        if not attributes:
            return [name, items]
        return [name, items, _packed(dict(attributes), path, number_of)]
    if kind in (bytes, bytearray):
        return [name, base64.b64encode(value).decode()]
    if kind is complex:
        return [name, value.real, value.imag]
    if kind is torch.Size:
        return [name, list(value)]
    if kind in (torch.dtype, torch.device):
        return [name, str(value).removeprefix("torch.")]
    if kind.__module__ == "numpy" and not getattr(value, "shape", (1,)):
        return _packed(value.item(), path, number_of)
    raise UnpackableState(f"{path.lstrip('.')} is a {name}")


def _unpacked(value: Any, tensors: Sequence[Any]) -> Any:
    torch: Any = sys.modules["torch"]
    if not isinstance(value, list):
        return value
    kind, content, *more = value
    if kind == "tensor":
        return tensors[content]
    if kind in _LISTS:
        return _LISTS[kind](_unpacked(element, tensors) for element in content)
    if kind in _DICTS:
        items = [(_unpacked(key, tensors), _unpacked(entry, tensors)) for key, entry in content]
        entries = _DICTS[kind](dict(items))
        if more:
            vars(entries).update(_unpacked(more[0], tensors))
        return entries
    if kind in ("bytes", "bytearray"):
        data = base64.b64decode(content)
        return data if kind == "bytes" else bytearray(data)
    if kind == "complex":
        return complex(content, more[0])
    if kind == "Size":
        return torch.Size(content)
    return getattr(torch, content) if kind == "dtype" else torch.device(content)
