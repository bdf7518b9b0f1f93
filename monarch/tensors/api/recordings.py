"""Many operations in one message: `coalescing` sends a block at once, `compile` records a
function."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from monarch.tensors.api.functions import code_of
from monarch.tensors.client.ambient import ambient, get_active_mesh
from monarch.tensors.client.dispatch import flatten_arguments
from monarch.tensors.client.recording import Recording
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.storages import alias_pattern

_MOST_RECORDINGS = 64

Record = Callable[[Callable[..., Any], Any, Any, list[Tensor]], Recording]


@contextlib.contextmanager
def coalescing() -> Iterator[None]:
    """Collect the operations of the block, and send them at its end. Blocks may be nested."""
    with get_active_mesh().client.held():
        yield


def is_coalescing() -> bool:
    mesh = ambient.mesh
    return mesh is not None and bool(mesh.client.num_held or mesh.client.recording is not None)


class _Compiled:
    """What ``compile`` returns: a function with its recordings, for each kind of arguments."""

    def __init__(self, function: Callable[..., Any], verify: bool, record: Record) -> None:
        self._function = function
        self._verify = verify
        self._record_once = record
        #: The recordings by key of the arguments, the latest used last.
        self._recordings: OrderedDict[Any, list[Recording]] = OrderedDict()
        #: The ``id`` of the recordings that have not been made a second time.
        self._unverified: set[int] = set()
        self.__name__ = "function"  # For functions without a name.
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key: list[Any] = []
        inputs = flatten_arguments(self.__name__, args, kwargs, key)
        mesh = inputs[0].mesh if inputs else get_active_mesh()
        if mesh.client.recording is not None:
            return self._function(*args, **kwargs)  # Part of a recording already.
        key += [(tensor.mesh, tensor.stream, tensor.requires_grad) for tensor in inputs]
        key += [mesh, ambient.stream, torch.is_grad_enabled(), code_of(self._function)]
        recordings = self._recordings.setdefault(tuple(key), [])
        self._recordings.move_to_end(tuple(key))
        while len(self._recordings) > _MOST_RECORDINGS:
            self._recordings.popitem(last=False)
        for recording in recordings:
            if recording.pattern == _pattern(recording, inputs) and recording.holds():
                self._verify_once(recording, args, kwargs, inputs)
                return recording.replay(inputs)
        recording = self._record(args, kwargs, inputs)
        recordings[:] = [older for older in recordings if older.holds()] + [recording]
        return recording.replay(inputs)

    def _record(self, args: Any, kwargs: Any, inputs: list[Tensor]) -> Recording:
        recording = self._record_once(self._function, args, kwargs, inputs)
        recording.define()
        recording.pattern = _pattern(recording, inputs)
        if self._verify:
            self._unverified.add(id(recording))
        return recording

    def _verify_once(
        self, recording: Recording, args: Any, kwargs: Any, inputs: list[Tensor]
    ) -> None:
        if id(recording) not in self._unverified:
            return
        self._unverified.discard(id(recording))
        again = self._record_once(self._function, args, kwargs, inputs)
        again.forget()
        if again.shape != recording.shape:
            raise RuntimeError(
                f"the second recording of {self._function!r} diverges from the first: it does not "
                "do the same each time, so that it cannot be replayed. Have it depend on its "
                "arguments alone, or use verify=False where the difference does not matter"
            )


def _pattern(recording: Recording, inputs: list[Tensor]) -> tuple[int, ...]:
    return alias_pattern([tensor._storage for tensor in (*inputs, *recording.captured)])


def _record(
    function: Callable[..., Any], args: Any, kwargs: Any, inputs: list[Tensor]
) -> Recording:
    return Recording(function, (args, kwargs), inputs)


def compile(fn: Any = None, verify: bool = True, *, record: Record = _record) -> Any:
    """Record the operations of ``fn``, and replay them with one message at later calls.

    There is a recording for each kind of arguments: the values of arguments that are no tensors,
    and for tensors the shape, strides, dtype, device, mesh and stream, and which of them share
    memory. Arguments and results must not require grad; tensors that ``fn`` captures may, so that a
    whole training step can be recorded. ``verify`` records a second time, and raises
    ``RuntimeError`` if the two recordings differ.
    """
    if fn is None:
        return functools.partial(compile, verify=verify, record=record)
    return _Compiled(fn, verify, record)


@contextlib.contextmanager
def explain() -> Iterator[list[str]]:
    """Yield a list that, at the end of the block, says why operations missed the cache.

    The cache has the operations that the workers know. An operation that misses it at each step
    makes each step slow: it has a new shape, a number that is part of the key, or a function that
    is pickled differently.
    """
    cache = get_active_mesh().client.cache
    cache.explain_from_now()
    lines: list[str] = []
    try:
        yield lines
    finally:
        lines += cache.explained()
