"""User data to bytes and back. Data for actors is unpickled here, and nowhere else."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch.wire.codec import Bytes
from monarch.wire.large_bytes import as_bytes
from monarch.wire.pickler import Pickler
from monarch.wire.tensors import TensorReducer

_IN_BAND_BYTES = 4 * 1024
"""Up to here, a copy into the pickle costs less than a buffer of its own."""

_LARGE_BYTES = 64 * 1024
"""From here on, ``bytes`` travel beside the pickle, too."""

_PLAIN = frozenset({int, float, bool, str, type(None)})
_PLAIN_BYTES = frozenset({bytes, bytearray, memoryview})
_MAX_DEPTH = 3
_MAX_ITEMS = 256


before_dump: list[Callable[[], None]] = []
"""Called by each sender's thread before anything is pickled: work of a GPU that the receiver may
rely on is marked then."""


class Borrowed(list[memoryview]):
    """Buffers that still belong to the sender, who may change them after sending.

    ``taken`` is the copy that the runtime made of them when it sent them, or None. ``is_shared``:
    several receivers may share that copy.
    """

    def __init__(self, views: Sequence[memoryview] = (), owner: object = None) -> None:
        super().__init__(views)
        self.taken: Any = None
        self.is_shared = False
        self.copies: list[Bytes] | None = None
        self._owner = owner  # Of the memory behind the views.

    def copied(self) -> list[Bytes]:
        """Return copies of the buffers, the same ones at each call. Buffers that cannot change are
        not copied."""
        if self.copies is None:
            self.copies = [as_bytes(view) for view in self]
        return self.copies


class Payload(NamedTuple):
    """A pickle, and the buffers that it refers to, which are not copied into it."""

    data: Bytes
    buffers: Sequence[Bytes] = ()

    def for_many(self, num_receivers: int) -> Payload:
        """Return this payload, to be sent to that many receivers one after another."""
        if isinstance(self.buffers, Borrowed):
            self.buffers.is_shared = num_receivers > 1
        return self


def dump(value: Any) -> Payload:
    """Pickle ``value``. Importable functions and classes are pickled by reference, others by value.

    Arrays, CPU tensors and large ``bytes`` are not copied but borrowed: send the payload before
    they can change. Raises what pickling raises, and ``TypeError`` for a CUDA tensor.
    """
    for act in before_dump:
        act()
    if _is_plain(value):
        data = pickle.dumps(value, protocol=5)
        return Payload(data, () if len(data) < _LARGE_BYTES else Borrowed())
    file = io.BytesIO()
    pickler = _PICKLERS[_is_torch_there(), _has_large(value)](file)
    pickler.dump(value)
    return Payload(file.getvalue(), pickler.buffers())


def _is_torch_there() -> bool:
    """Return whether torch is loaded, so that there may be tensors; False while it is being
    imported."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _is_plain(value: Any) -> bool:
    """Return whether a value is so plain that C's fast pickler can pickle it.

    It looks into the tuples and dicts of the usual (args, kwargs).
    """
    if type(value) is tuple:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain_leaf(item) for key, item in value.items())
    return _is_plain_leaf(value)


def _is_plain_leaf(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is bytes and len(value) < _LARGE_BYTES)


def _is_large(value: Any) -> bool:
    """Return whether a value is contiguous bytes that should travel beside the pickle."""
    if type(value) not in _PLAIN_BYTES:
        return False
    if type(value) is memoryview:
        return value.c_contiguous and value.nbytes >= _LARGE_BYTES
    return len(value) >= _LARGE_BYTES


def _has_large(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether plain containers have large bytes in them. Looks only where they usually
    are."""
    if _is_large(value):
        return True
    kind = type(value)
    if depth == 0 or kind not in (tuple, list, dict) or len(value) > _MAX_ITEMS:
        return False
    items = value.values() if kind is dict else value
    return any(_has_large(item, depth - 1) for item in items)


class _Buffers:
    """Collects the buffers of a pickle. It is not the pickler itself: that would be a reference
    cycle, which keeps the sender's memory until the garbage is collected."""

    def __init__(self) -> None:
        self.collected: list[Any] = []
        self.tensors = TensorReducer() if _is_torch_there() else None

    def collect(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a buffer and return False; return True to have it copied into the pickle."""
        # The used part of a storage is known only at the end.
        late = None if self.tensors is None else self.tensors.late(buffer)
        if late is not None:
            self.collected.append(late)
            return False
        view = buffer.raw()
        if len(view) < _IN_BAND_BYTES:
            return True
        self.collected.append(view)
        return False

    def borrowed(self) -> Borrowed:
        views = [item if isinstance(item, memoryview) else item.view() for item in self.collected]
        if self.tensors is not None:
            self.tensors.end()
        return Borrowed(views, self.tensors)


class _Pickler(Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        self._buffers = _Buffers()
        super().__init__(file, protocol=5, buffer_callback=self._buffers.collect)

    def buffers(self) -> Borrowed:
        """Return the buffers that were left out of the pickle."""
        return self._buffers.borrowed()


class _TensorPickler(_Pickler):
    """The pickler once torch is loaded: the storages of tensors are buffers, too."""

    def reducer_override(self, value: Any) -> Any:
        tensors = self._buffers.tensors
        reduced = NotImplemented if tensors is None else tensors.reduce(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def _with_bytes(kind: type[_Pickler]) -> type[_Pickler]:
    """Return a pickler class that leaves large bytes out of the pickle.

    It checks every object, so it is used only if there are such bytes.
    """

    class WithBytes(kind):  # type: ignore[misc, valid-type]
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self._large: dict[int, tuple[tuple[str, int], memoryview]] = {}

        def persistent_id(self, value: Any) -> Any:
            if not _is_large(value):
                return None
            entry = self._large.get(id(value))
            if entry is None:
                name = "bytearray" if type(value) is bytearray else "bytes"
                entry = (name, len(self._large)), memoryview(value).cast("B")
                self._large[id(value)] = entry
            return entry[0]

        def buffers(self) -> Borrowed:
            # At the end, and counted from there: the others are read in the order of the pickle.
            borrowed: Borrowed = super().buffers()
            borrowed += [view for _, view in reversed(self._large.values())]
            return borrowed

    return WithBytes


_PICKLERS: dict[tuple[bool, bool], type[_Pickler]] = {
    (False, False): _Pickler,
    (True, False): _TensorPickler,
    (False, True): _with_bytes(_Pickler),
    (True, True): _with_bytes(_TensorPickler),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Bytes, buffers: Sequence[Bytes]) -> None:
        super().__init__(io.BytesIO(data), buffers=map(_writable, buffers))
        self._received = buffers
        self._large: dict[int, bytes | bytearray] = {}

    def persistent_load(self, name: Any) -> bytes | bytearray:
        kind, index = name
        if index not in self._large:
            view = memoryview(self._received[-1 - index])
            self._large[index] = bytearray(view) if kind == "bytearray" else as_bytes(view)
        return self._large[index]


def load(data: Bytes, buffers: Sequence[Bytes] = ()) -> Any:
    """Return the value of a payload. Raises what unpickling raises."""
    return _Unpickler(data, buffers).load() if buffers else pickle.loads(data)


def _writable(buffer: Bytes) -> Bytes:
    # A receiver owns what it received: arrays made from read-only buffers refuse writes.
    view = memoryview(buffer)
    return bytearray(view) if view.readonly else view
