"""User data to bytes and back. This is the only module that unpickles."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from monarch.wire.codec import Bytes

__all__ = ["Payload", "dump", "load"]

_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class Payload(NamedTuple):
    """A pickle, and the buffers that it refers to, which are not copied into it."""

    data: Bytes
    buffers: Sequence[Bytes] = ()


def dump(value: Any) -> Payload:
    """Pickle ``value``: by reference what can be imported, by value what cannot.

    The bytes are taken now: a later change of ``value`` is not seen, except in buffers
    (numpy arrays, tensors), which are copied here for the same reason.
    """
    if _is_plain(value):
        return Payload(pickle.dumps(value, protocol=5))
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    cloudpickle.Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return Payload(file.getvalue(), [bytes(buffer.raw()) for buffer in buffers])


def _is_plain(value: Any) -> bool:
    """Whether the fast C pickler alone gives the right bytes: the usual (args, kwargs)."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and type(item) in _PLAIN for key, item in value.items())
    return type(value) in _PLAIN


def load(data: Bytes, buffers: Sequence[Bytes] = ()) -> Any:
    """The value of a payload. Raises what unpickling raises."""
    return pickle.loads(data, buffers=map(_writable, buffers))


def _writable(buffer: Bytes) -> Bytes:
    # A receiver owns what it received: arrays made from read-only buffers refuse writes.
    view = memoryview(buffer)
    return bytearray(view) if view.readonly else view
