"""A sequence of operations that is recorded instead of sent, and becomes one template.

While a client has a `Recorder`, nothing is sent. In the end the recorded operations become a
program at the workers (`core.program`). Its inputs are the function's arguments and the tensors
that it captured. Failures, frees and aliasing then work as for any operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch.tensors.client.ambient import TensorStream, ambient, get_active_mesh
from monarch.tensors.client.issuing import issue
from monarch.tensors.client.refusals import refuse_grad, refuse_unusable
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.core.batch import ALL_STREAMS
from monarch.tensors.core.program import RecordedStep
from monarch.tensors.core.specs import fill, take_apart
from monarch.tensors.core.storages import Storage
from monarch.tensors.core.templates import (
    FRESH,
    VIEW_OF_INPUT,
    VIEW_OF_RESULT,
    Result,
    Template,
)

_DROPPED = (
    "tensor is dropped at: \nthe end of the recording that it was made in; return it from there"
)


class _Guard(NamedTuple):
    """A number that ``fn`` read while it was recorded.

    The recording is valid only while the number in ``tensor`` equals ``value``.
    """

    tensor: Tensor
    value: Any


class Recorder:
    """Records the operations that one client would send without it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        #: The first reference that the recording gives out.
        self.start: int = client.next_ref
        self.steps: list[RecordedStep] = []
        #: The tensors that a step writes to, by reference.
        self.written: dict[int, Tensor] = {}
        #: The tensors from before the recording that a step uses, by reference.
        self.older: dict[int, Tensor] = {}
        #: The numbers that were read.
        self.guards: list[_Guard] = []
        #: The keys of the code of called functions, each with the function that returns it.
        self.code: list[tuple[Callable[[], Any], Any]] = []
        #: The streams and meshes of the steps.
        self.streams: set[int] = set()
        self.meshes: set[Any] = set()
        #: The handles that the recording made, by reference.
        self._made: dict[int, weakref.ref[Tensor]] = {}
        self._num_tickets = 0

    def add(
        self,
        template: Template,
        tensors: Sequence[Tensor],
        scalars: Sequence[Any],
        mesh: Any,
        stream: TensorStream,
    ) -> int:
        """Record an operation, and return the reference of its first result."""
        client = self.client
        base: int = client.next_ref
        client.next_ref = base + template.num_out
        for tensor in tensors:
            if not self.made_here(tensor):
                self.older[_ref(tensor)] = tensor
        for position in template.mutates:
            written = tensors[position]
            self.written[_ref(written)] = written
            written._storage.is_known = False
        self.streams.add(stream.number)
        self.meshes.add(mesh)
        used = tuple(_ref(tensor) for tensor in tensors)
        self.steps.append(RecordedStep(template.number, base, used, tuple(scalars), mesh.number))
        return base

    def next_ticket(self) -> int:
        """Return a negative ticket, which each replay of the recording uses again.

        Each recording counts from -1, so that two recordings of the same steps are equal.
        """
        self._num_tickets += 1
        return -self._num_tickets

    def made_here(self, tensor: Tensor) -> bool:
        return _ref(tensor) >= self.start

    def made(self, tensor: Tensor) -> None:
        """Register a handle that was made while recording.

        It becomes invalid when the recording ends.
        """
        self._made[_ref(tensor)] = weakref.ref(tensor)

    def guard(self, tensor: Tensor, value: Any) -> None:
        """Register that ``fn`` read the number ``value`` from ``tensor``.

        The recording is valid only while the number is the same.
        """
        self.guards.append(_Guard(tensor, value))

    def uses(self, code: Callable[[], Any]) -> None:
        """Register the code of a function that was called.

        The recording is valid until a reload changes the code.
        """
        self.code.append((code, code()))

    def end(self) -> None:
        """Drop the values that were made while recording: each replay makes them again."""
        for frees in self.client.frees.values():
            for refs in frees.values():
                refs[:] = [ref for ref in refs if ref < self.start]
        for weak in self._made.values():
            tensor = weak()
            if tensor is not None and tensor._ref is not None:
                # A storage of its own: a view of something older must not drop that.
                tensor._ref = None
                tensor._storage = Storage()
                tensor._storage.drop(_DROPPED)


class Recording:
    """A function that was recorded for one kind of arguments."""

    #: Which of the arguments and captured tensors share memory.
    pattern: tuple[int, ...] = ()

    def __init__(self, function: Callable[..., Any], args: Any, inputs: Sequence[Tensor]) -> None:
        client, mesh, stream = _place(inputs)
        for tensor in inputs:
            refuse_unusable("compile", tensor, tensor.mesh, tensor.stream)
            refuse_grad("compile", tensor)
        client.flush()
        recorder = client.recording = Recorder(client)
        try:
            result = function(*args[0], **args[1])
            self.spec, outputs = take_apart(result, Tensor)
            for tensor in outputs:
                refuse_grad("compile", tensor)
            self._take(recorder, inputs, outputs, mesh, stream)
        finally:
            client.recording = None
            recorder.end()

    def _take(
        self,
        recorder: Recorder,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        mesh: Any,
        stream: TensorStream,
    ) -> None:
        input_refs = {_ref(tensor) for tensor in inputs}
        older = dict(recorder.older)
        for tensor in outputs:
            if not recorder.made_here(tensor):
                older[_ref(tensor)] = tensor
        #: The tensors that the function uses without getting them as arguments.
        self.captured = [tensor for ref, tensor in older.items() if ref not in input_refs]
        self._guards = recorder.guards
        self._code = list(dict(recorder.code).items())
        everything = [*inputs, *self.captured]
        refs = [_ref(tensor) for tensor in everything]
        # Several of the arguments may be the same tensor.
        unique = list(dict.fromkeys(refs))
        self._positions = [refs.index(ref) for ref in unique]
        mutates = tuple(n for n, ref in enumerate(unique) if ref in recorder.written)
        self._client = recorder.client
        self._mesh = mesh if recorder.meshes <= {mesh} else self._client.everybody
        self._stream = stream
        self._has_other_streams = bool(recorder.streams - {stream.number})
        results = [
            Result(kind, meta, unique.index(refs[index]) if kind == VIEW_OF_INPUT else index)
            for kind, meta, index in _results(outputs, everything)
        ]
        #: The mesh and the stream of each output.
        self._owners = [(tensor.mesh, tensor.stream) for tensor in outputs]
        self.template = Template(
            "recording",
            results,
            num_in=len(unique),
            mutates=mutates,
            rebuild=lambda handles: handles,
        )
        names = [_ref(tensor) for tensor in outputs]
        self._definition = ("recording", unique, names, recorder.steps)
        #: Equal for two recordings that do the same.
        self.shape = _shape(recorder, unique, names)

    def define(self) -> None:
        """Send the recording to the workers, if they do not know it yet."""
        if not self.template.number:
            self._client.define_template(self.template, 0, *self._definition)

    def forget(self) -> None:
        """Tell the workers to forget the recording."""
        if self.template.number:
            self._client.forget(self.template)

    def holds(self) -> bool:
        """Return whether the recording is still valid.

        It is valid while the numbers that ``fn`` read, and the functions that it called, are as
        they were during the recording.
        """
        return all(code() == recorded for code, recorded in self._code) and all(
            tensor._storage.is_known
            and tensor._known is not None
            and tensor.mesh.known_value(tensor) == value
            for tensor, value in self._guards
        )

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        """Issue the recording as one operation on ``inputs``, and return the function's results."""
        everything = [*inputs, *self.captured]
        for tensor in everything:
            refuse_unusable("compiled function", tensor, tensor.mesh, tensor.stream)
        used = [everything[position] for position in self._positions]
        stream = _AllStreams() if self._has_other_streams else self._stream
        outputs = issue(self.template, used, [], self._mesh, stream)  # type: ignore[arg-type]
        for tensor, (mesh, owner) in zip(outputs, self._owners, strict=True):
            tensor.mesh, tensor.stream = mesh, owner
        for position in self.template.mutates:
            used[position]._storage.is_known = False
        return fill(self.spec, outputs)


class _AllStreams:
    """The stream of a recording that uses several streams.

    It waits for all streams, and they wait for it.
    """

    number = ALL_STREAMS


def _place(inputs: Sequence[Tensor]) -> tuple[Any, Any, TensorStream]:
    mesh = inputs[0].mesh if inputs else get_active_mesh()
    return mesh.client, mesh, ambient.stream


def _results(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Result]:
    storages = [id(tensor._storage) for tensor in inputs]
    seen: list[int] = []
    results = []
    for tensor in outputs:
        key = id(tensor._storage)
        if key in storages:
            results.append(Result(VIEW_OF_INPUT, tensor._meta, storages.index(key)))
        elif key in seen:
            results.append(Result(VIEW_OF_RESULT, tensor._meta, seen.index(key)))
        else:
            results.append(Result(FRESH, tensor._meta))
        seen.append(key)
    return results


def _shape(recorder: Recorder, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
    """Return the steps in a form that is equal for two recordings of the same operations."""

    def name(ref: int) -> tuple[str, int]:
        if ref >= recorder.start:
            return ("made", ref - recorder.start)
        return ("input", inputs.index(ref))

    steps = [
        (step.number, name(step.base), tuple(map(name, step.used)), repr(step.scalars), step.mesh)
        for step in recorder.steps
    ]
    return steps, [name(ref) for ref in outputs]


def _ref(tensor: Tensor) -> int:
    assert tensor._ref is not None
    return tensor._ref
