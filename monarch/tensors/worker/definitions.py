"""Definitions of the controller, made once and then called by number.

Each definition is a tuple that begins with its kind; `WorkerDefinitions.define` lists them. A
definition that cannot be made, for example because its function cannot be imported, becomes an
operation that raises the reason.
"""

from __future__ import annotations

import importlib
import operator
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from monarch.tensors.core import program
from monarch.tensors.core.batch import EVERYBODY
from monarch.tensors.core.program import RecordedStep, WorkerOp, WorkerProgram
from monarch.tensors.core.specs import CallSpec, take_apart
from monarch.tensors.worker import slots
from monarch.tensors.worker.collectives import Passage, Reduction, TensorLooks, fans_of
from monarch.tensors.worker.groups import MeshShape, ProcessGroups
from monarch.tensors.worker.lanes import Device
from monarch.tensors.worker.slots import POISON, refuse_poison

_ASK_GRAD_MODE = frozenset(("aten.mkldnn_rnn_layer.default",))
"""Operators that compute less when grad mode is off, as it is here. Backward needs the rest."""


class Operation:
    """What this worker runs for one template.

    It also has what takes part in the operation's collectives, in its place, if the operation
    fails.
    """

    def __init__(
        self,
        function: Any,
        spec: CallSpec,
        *,
        check: Any = None,
        stand_in: Callable[[], object] | None = None,
        recorded: WorkerProgram | None = None,
    ) -> None:
        self.op: WorkerOp = (function, spec, check)
        self.spec = spec
        self.program = recorded or program.operation(function, spec, check)
        self.num_stored = sum(path is not None for path in spec.paths)
        #: What takes part in its collectives if it fails, by the step of the recording; an
        #: operation alone has step -1.
        self.stand_ins: list[tuple[int, Callable[[], object]]] = []
        if stand_in is not None:
            self.stand_ins.append((-1, stand_in))
        names: dict[str, Any] = dict(self.program.constants)
        exec(self.program.text, names)
        #: Runs its program, as ``run(v, r, i, s)``; see ``core.program``.
        self.run: Any = names["op"]


class WorkerDefinitions:
    """The templates and meshes that this worker knows."""

    def __init__(self, rank: int, world: int, groups: ProcessGroups, device: Device) -> None:
        self._device = device
        self.operations: dict[int, Operation] = {}
        self.meshes: dict[int, MeshShape] = {EVERYBODY: MeshShape(("rank",), (world,), (1,), 0)}
        self._rank = rank
        self._groups = groups
        #: Whether this worker is in a mesh, by the mesh's number.
        self._member: dict[int, bool] = {EVERYBODY: True}
        #: The templates that no later record uses.
        self.outdated: list[int] = []

    def is_in(self, mesh: int) -> bool:
        return self._member[mesh]

    def define(self, number: int, data: bytes) -> None:
        """Add a definition. If that fails, its number gets an operation that raises the error."""
        counts, definition = pickle.loads(data)
        try:
            kind, *rest = cloudpickle.loads(definition)
            if kind == "mesh":
                self.meshes[number] = mesh = MeshShape(*rest)
                self._member[number] = mesh.coordinates(self._rank) is not None
            elif kind == "forget":
                self.outdated += rest[0]
            elif kind == "meet":
                self._groups.meet(*rest)
            elif kind == "groups":
                mesh_number, dims, use = rest
                self._groups.make(self.meshes[mesh_number].all_peers(dims), use)
            else:
                make: Callable[..., Operation] = getattr(self, f"_{kind}")
                self.operations[number] = make(*rest)
        except Exception as error:
            if counts is None:
                raise
            self.operations[number] = _failing(error, *counts)

    def forget(self) -> None:
        """Remove the operations that the controller has told this worker to forget."""
        for number in self.outdated:
            self.operations.pop(number, None)
        self.outdated = []

    def _op(self, where: tuple[str, Any], spec: CallSpec) -> Operation:
        if where[0] == "aten":
            return Operation(_operator(where[1]), spec)
        return Operation(resolve(where), spec, check=refuse_poison)

    def _constant(self, value: torch.Tensor) -> Operation:
        return Operation(value.clone, CallSpec([], [], 0, 0, [()]))

    def _rank_of(self, mesh: int, dim: str | None) -> Operation:
        mine = self.meshes[mesh].coordinates(self._rank)
        value = torch.tensor(0 if mine is None or dim is None else mine[dim], dtype=torch.long)
        return Operation(value.clone, CallSpec([], [], 0, 0, [()]))

    def _reduce(
        self,
        mesh: int,
        dims: tuple[str, ...],
        stream: int,
        how: tuple[str, bool, bool],
        looks: tuple[Any, ...],
        spec: CallSpec,
    ) -> Operation:
        self._groups.make(self.meshes[mesh].all_peers(dims), stream)
        if not self.is_in(mesh):
            return Operation(None, spec)
        group = self._groups.of(self.meshes[mesh].peers(self._rank, dims), stream)
        reduction, scatter, inplace = how
        by_host = self._groups.go_by_host
        reduce = Reduction(group, reduction, scatter=scatter, inplace=inplace, by_host=by_host)
        return Operation(reduce, spec, stand_in=reduce.stand_in(TensorLooks(*looks)))

    def _passage(
        self, pairs: tuple[tuple[int, int], ...], stream: int, looks: tuple[Any, ...]
    ) -> Operation:
        fans = fans_of(pairs)
        self._groups.make(fans.values(), stream)
        groups = {source: self._groups.of(ranks, stream) for source, ranks in fans.items()}
        shard = TensorLooks(*looks)
        pair_groups: dict[tuple[int, int], Any] = {}
        by_host = shard.device.startswith("cuda") and self._groups.go_by_host
        if shard.device.startswith("cuda") and not by_host:
            # NCCL has no tags, and a group does one transfer after the other: one stream would
            # receive what another sent, and two ranks that both send first wait for ever.
            for pair in pairs:
                if pair[0] != pair[1] and pair[0] not in fans:
                    ranks, use = (min(pair), max(pair)), (stream, "from", pair[0])
                    self._groups.make([ranks], use)
                    pair_groups[pair] = self._groups.of(ranks, use)
        passage = Passage(
            pairs,
            self._rank,
            shard,
            groups=groups,
            pair_groups=pair_groups,
            tag=stream,
            by_host=by_host,
        )
        is_target = any(target == self._rank for _, target in pairs)
        spec = CallSpec([("o", 0)], [], 1, 0, [() if is_target else None])
        return Operation(passage, spec, stand_in=passage.stand_in())

    def _hand(self) -> Operation:
        return Operation(self._put, CallSpec([("s", 0), ("t", 0)], [], 1, 1, []))

    def _signal(self) -> Operation:
        return Operation(self._put, CallSpec([("s", 0), ("c", None)], [], 0, 1, []))

    def _take(self) -> Operation:
        return Operation(self._taken, CallSpec([("s", 0)], [], 0, 1, [()]))

    def _wait(self) -> Operation:
        return Operation(self._taken, CallSpec([("s", 0)], [], 0, 1, []))

    def _put(self, ticket: int, value: Any) -> None:
        slots.put(ticket, (value, self._device.mark()))

    def _taken(self, ticket: int) -> Any:
        value, mark = slots.take(ticket)
        self._device.await_mark(mark)
        self._device.keep_for(value)
        return value

    def _lend(self, ranks: tuple[int, ...], copies: bool) -> Operation:
        """Return the operation that hands a tensor to an actor of this proc.

        It does nothing on workers that are not in ``ranks``. ``copies`` hands over a copy.
        """
        is_mine = self._rank in ranks

        def lend(ticket: int, value: Any) -> None:
            if is_mine:
                lent = value.clone() if copies and value is not POISON else value
                self._device.put_before_own()
                self._device.keep_for(lent, self._device.own())
                slots.put(ticket, lent)

        return Operation(lend, CallSpec([("s", 0), ("t", 0)], [], 1, 1, []))

    def _await_actor(self, ranks: tuple[int, ...]) -> Operation:
        is_mine = self._rank in ranks

        def await_actor(ticket: int) -> None:
            if is_mine:
                slots.take(ticket)
                self._device.put_after_own()

        return Operation(await_actor, CallSpec([("s", 0)], [], 0, 1, []))

    def _results(self, paths: list[tuple[Any, ...]], num_in: int) -> Operation:
        """Return the operation that waits for the result of an actor's call and takes it apart.

        ``paths`` are where tensors are in the result; ``num_in`` is how many tensors the call got.
        """

        def results(ticket: int) -> Any:
            value, error = slots.take(ticket)
            if error is not None:
                raise error
            self._device.put_after_own()
            for tensor in tensors_in(value):
                self._device.keep_for(tensor)
            return value

        return Operation(results, CallSpec([("s", 0)], [], num_in, 1, list(paths)))

    def _recording(
        self, inputs: list[int], results: list[int], steps: list[RecordedStep]
    ) -> Operation:
        def op(number: int) -> WorkerOp:
            return self.operations[number].op

        recorded = program.recording(inputs, results, steps, op, self.is_in)
        spec = CallSpec([], [], len(inputs), 0, [()] * len(results))
        whole = Operation(None, spec, recorded=recorded)
        own = [step for step in steps if self.is_in(step.mesh)]
        for n, step in enumerate(own):
            whole.stand_ins += [(n, act) for _, act in self.operations[step.number].stand_ins]
        return whole


def _failing(error: Exception, num_in: int, num_stored: int, num_scalars: int) -> Operation:
    args: list[Any] = [("o", n) for n in range(num_in)] + [("s", n) for n in range(num_scalars)]
    spec = CallSpec(args, [], num_in, num_scalars, [(n,) for n in range(num_stored)])

    # Each time with the traceback of its origin: a raised error collects the frames it passes.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next

    def fail(*args: Any) -> None:
        raise error.with_traceback(trace)

    return Operation(fail, spec)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return take_apart(value, torch.Tensor)[1]


def _operator(name: str) -> Any:
    """Return a torch operator by its name, such as ``aten.add.Tensor``."""
    function = operator.attrgetter(name)(torch.ops)
    return torch.enable_grad()(function) if name in _ASK_GRAD_MODE else function


def resolve(where: tuple[str, Any]) -> Any:
    """Load a function by its path, or from its pickle."""
    kind, source = where
    function = _by_path(source) if kind == "path" else cloudpickle.loads(source)
    # The wrapper that `remote` makes has the function itself in this attribute.
    return getattr(function, "remote_function", function)


def _by_path(path: str) -> Any:
    """Return the object at a dotted path, an attribute of the longest part that can be imported.

    Raises ``ImportError`` if no part can be imported, ``AttributeError`` if the module lacks the
    name.
    """
    parts = path.split(".")
    for num in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:num])
        try:
            value: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        try:
            return operator.attrgetter(".".join(parts[num:]))(value)
        except AttributeError as error:
            raise AttributeError(
                f"the path {path!r} leads to nothing in this proc: {error}. Correct it, or "
                "bring the code of now here (procs.sync_workspace)"
            ) from None
    raise ImportError(
        f"the path {path!r} leads to nothing in this proc: it begins with no module that can be "
        "imported here. Give 'package.module.name' of a module that is installed here or was "
        "brought here (procs.sync_workspace), or give the function itself instead of its path"
    )
