"""Functions that run on the workers."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import Future, Port
from monarch.mesh import Shape, Slice, ValueMesh
from monarch.runtime.ends.late_thread import run_aside
from monarch.tensors.api.functions import RemoteFunction, rule_version
from monarch.tensors.client.ambient import Activation, ambient
from monarch.tensors.client.device_mesh import DeviceMesh
from monarch.tensors.client.dispatch import check_arguments, dispatch_function
from monarch.tensors.client.tensor import Tensor
from monarch.tensors.worker.definitions import tensors_in
from monarch.tensors.worker.describing import Described, describe

Propagator = Any
_INSPECT = "inspect"


class Remote:
    """A function of the workers. A call runs it on the mesh of its tensors, or else the active
    mesh."""

    num_hits = 0
    num_misses = 0

    def __init__(self, function: Any, propagate: Propagator = None) -> None:
        words = (None, "cached", _INSPECT, "mocked")
        if not callable(propagate) and propagate not in words:
            raise ValueError(f"propagate is a function or one of {words}, not {propagate!r}")
        if isinstance(function, Remote):
            function = function.remote_function
        self.remote_function: Any = function
        self._propagate = propagate
        if callable(function):
            functools.update_wrapper(self, function)

    @functools.cached_property
    def _function(self) -> RemoteFunction:
        return RemoteFunction(self.remote_function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.rref(*args, **kwargs)

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on all members, and return its result as distributed tensors.

        It does not wait. ``propagate`` says which shapes they have: a function computes them from
        tensors without values; ``None`` and "cached" run the function once on a shard, and keep the
        shapes that it returned; "inspect" is for functions that return nothing.
        """
        if self._propagate == "mocked":
            raise NotImplementedError("propagate='mocked': give the rule as a function")
        if callable(self._propagate):
            return self.dispatch_by(self._propagate, args, kwargs)
        if self._propagate == _INSPECT:
            return self.dispatch_by(lambda *args, **kwargs: None, args, kwargs)
        num_misses = Remote.num_misses

        def ask(*fake_args: Any, **fake_kwargs: Any) -> Any:
            Remote.num_misses += 1
            with _disable_current_modes():
                described = self._ask_shard(args, kwargs)
            return described.on(tensors_in((fake_args, fake_kwargs)))

        result = self.dispatch_by(ask, args, kwargs)
        Remote.num_hits += Remote.num_misses == num_misses
        return result

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Run the function on all members of the active mesh; return a future of their results."""
        mesh, handle = self._issue(args, kwargs)
        ranks = tuple(mesh.processes)
        shape = Shape(mesh.names, mesh.processes)
        return _fetched(mesh, handle, ranks).then(
            lambda values: ValueMesh(shape, [values[rank] for rank in ranks])
        )

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function on the only member of the active mesh; return a future of its result.

        Raises ``ValueError`` if the mesh has more members.
        """
        mesh = _active()
        if len(mesh) != 1:
            raise ValueError(
                f"call_one requires exactly 1 member, but the mesh has {len(mesh)}: slice it, or "
                "use call, or choose"
            )
        return self._call_rank(mesh.processes.offset, args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function on one random member of the active mesh; return a future of its
        result."""
        return self._call_rank(random.choice(list(_active().processes)), args, kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Run the function on all members of the active mesh, and drop what it returns."""
        self._issue(args, kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Future[Any]]:
        """Run the function on all members of the active mesh; return a future for each member."""
        mesh, handle = self._issue(args, kwargs)
        ranks = tuple(mesh.processes)
        fetched = _fetched(mesh, handle, ranks)
        return iter([fetched.then(operator.itemgetter(rank)) for rank in ranks])

    def send_to_port(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], port: Port[Any] | None, selection: str
    ) -> None:
        """Send the results of all members, or of one random member, into ``port``.

        ``monarch.actor.send`` calls this. The results pass through this process; an error is sent
        once for each member.
        """
        if selection == "choose":
            futures = [self.choose(*args, **kwargs)]
        else:
            futures = list(self.stream(*args, **kwargs))
        if port is None:
            return
        address = port._address

        def forward() -> None:
            for rank, future in enumerate(futures):
                reply: Port[Any] = Port(address, rank)
                try:
                    reply.send(future.get())
                except Exception as error:
                    reply.exception(error)

        run_aside(forward, name="monarch-send")

    def _call_rank(self, rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        mesh = single(_active(), rank)
        with Activation(mesh=mesh, mode=ambient.mode):
            _, handle = self._issue(args, kwargs)
        return _fetched(mesh, handle, (rank,)).then(lambda values: values[rank])

    def dispatch_by(
        self,
        rule: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        seen: tuple[Any, ...] = (),
    ) -> Any:
        """Run the function; ``rule`` computes the shapes of its result.

        The rule runs once for each kind of arguments and each ``seen``, a key of other state that
        the rule reads. It runs again after ``propagate`` has changed.
        """
        function = self._function
        version = (rule_version(self._propagate), *function.version(), *seen)
        return dispatch_function(
            function.name, function.where, version, args, kwargs, rule, code=function.code
        )

    def _ask_shard(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Described:
        tensors = check_arguments(self._function.name, args, kwargs, [])
        mesh = tensors[0].mesh if tensors else _active()
        with Activation(mesh=single(mesh, mesh.processes.offset)):
            call = (self._function.where(), tuple(args), dict(kwargs))
            future = Remote(describe)._call_rank(mesh.processes.offset, call, {})
        return future.get()  # type: ignore[no-any-return]

    def _issue(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[DeviceMesh, Tensor]:
        """Run the function on the active mesh, and keep the results on its members.

        Returns the mesh, and a handle of the results, which may be of any type.
        """
        mesh = _active()
        tensors = check_arguments(self._function.name, args, kwargs, [])
        if tensors and not set(mesh.processes) <= set(tensors[0].mesh.processes):
            raise ValueError(
                f"The current mesh {mesh} is not a subset of the mesh on which the tensors being "
                f"used are defined {tensors[0].mesh}: activate that one or a slice of it, or move "
                "the tensors with to_mesh"
            )
        if mesh.client.num_held or mesh.client.recording is not None:
            raise NotImplementedError(
                "NYI: fetching results during a coalescing block: fetch after it"
            )
        function, rule = self._function, self._propagate

        def propagate(*args: Any, **kwargs: Any) -> torch.Tensor:
            if callable(rule):
                rule(*args, **kwargs)  # For what it writes to.
            return torch.empty((), dtype=torch.long)

        version = ("value", rule_version(rule), *function.version())
        handle: Tensor = dispatch_function(
            function.name, function.where, version, args, kwargs, propagate, on=mesh
        )
        return mesh, handle

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<remote {self._function.name}>"


def remote(function: Any = None, *, propagate: Propagator = None) -> Any:
    """Make a function run on the workers of the active mesh.

    ``function`` is a callable, or a callable's path ("package.module.name"). ``propagate`` says
    what shapes the result has: a function computes them from tensors without values; "cached" (the
    default) runs ``function`` on one shard first, once for each kind of arguments; "inspect" is for
    functions that return nothing and write to no argument.
    """
    if function is None:
        return functools.partial(remote, propagate=propagate)
    return Remote(function, propagate)


def call_on_shard_and_fetch(
    remote: Any, *args: Any, shard: Mapping[str, int] | None = None, **kwargs: Any
) -> Future[Any]:
    """Run a remote function on one shard alone; return a future of its result.

    ``shard`` is the shard's coordinates; without it the first shard is used.
    """
    function = remote if isinstance(remote, Remote) else Remote(remote)
    tensors = check_arguments(function._function.name, args, kwargs, [])
    mesh = tensors[0].mesh if tensors else _active()
    rank = mesh.check_shard(shard)
    with Activation(mesh=mesh, mode=ambient.mode):
        return function._call_rank(rank, args, kwargs)


def single(mesh: DeviceMesh, rank: int) -> DeviceMesh:
    """Return the mesh that has only the member ``rank``."""
    return mesh._new_with_shape(Shape(["_"], Slice(offset=rank, sizes=[1], strides=[1])))


def _active() -> DeviceMesh:
    if ambient.mesh is None:
        raise ValueError(
            "Calling a 'remote' monarch function requires an active proc_mesh (`with "
            "proc_mesh.activate():`)"
        )
    return ambient.mesh  # type: ignore[no-any-return]


def _fetched(mesh: DeviceMesh, handle: Tensor, ranks: tuple[int, ...]) -> Future[dict[int, Any]]:
    assert handle._ref is not None
    future = mesh.client.fetch(ranks, [handle._ref])
    handle.drop()
    return future.then(lambda values: {rank: value for rank, (value,) in values.items()})
