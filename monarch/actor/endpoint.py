"""Methods that other processes may call, and the ways to call them."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

from monarch.actor import lending
from monarch.actor.arguments import check_arguments
from monarch.actor.future import Future, make_future
from monarch.actor.mesh_ref import MeshRef, check_undivided
from monarch.actor.replies import CallSink, OneSink, StreamSink, resolve_call, resolve_one
from monarch.core.event_ring import SentCall, sent_call_ends
from monarch.core.rings import Asked
from monarch.mesh import ValueMesh
from monarch.offers import offered
from monarch.runtime import process, telemetry
from monarch.runtime.cells.endpoint_spec import EndpointSpec
from monarch.runtime.context import running, sending_actor
from monarch.runtime.port import Port
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Call
from monarch.wire.unsendable import dump_or_say

P = ParamSpec("P")
R = TypeVar("R")


class EndpointProperty(Generic[P, R]):
    """The class attribute that ``@endpoint`` makes of a method, which marks it as an endpoint."""

    def __init__(
        self,
        method: Callable[..., Any],
        propagator: Any = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
        *,
        concurrent: bool = False,
    ) -> None:
        spec = EndpointSpec(
            method, explicit_response_port, concurrent, instrument=instrument, propagate=propagator
        )
        self.endpoint_spec = spec
        functools.update_wrapper(self, method)  # type: ignore[arg-type]
        # A partial is called without a frame of ours in between, and carries attributes.
        plain: Any = functools.update_wrapper(functools.partial(method), method)
        plain._method = method
        self._plain = plain

    @property
    def _method(self) -> Callable[..., Any]:
        """Return the plain function. Libraries for Monarch look it up by the name ``_method``."""
        return self.endpoint_spec.method

    @property
    def _explicit_response_port(self) -> bool:
        """Whether the actor takes its next message before this endpoint has answered; libraries for
        Monarch read it.
        """
        return self.endpoint_spec.explicit_response_port or self.endpoint_spec.is_concurrent

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # The actor itself may call its own endpoints as plain methods.
        return self if instance is None else MethodType(self._plain, instance)


@overload
def endpoint(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> EndpointProperty[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R]) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    *, propagate: Any = None, explicit_response_port: bool = False, instrument: bool = True
) -> Callable[[Callable[..., Any]], EndpointProperty[..., Any]]: ...
def endpoint(
    method: Callable[..., Any] | None = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark a method of an actor as callable from other processes.

    With ``explicit_response_port`` the method gets a ``Port`` after ``self`` and answers through
    it, at any time and any number of times; an exception then fails the actor.
    """

    def mark(function: Callable[..., Any]) -> EndpointProperty[..., Any]:
        return EndpointProperty(function, propagate, explicit_response_port, instrument)

    return mark if method is None else mark(method)


class Endpoint(Generic[P, R]):
    """One endpoint of all members of a mesh, and the adverbs that say how to call it."""

    __slots__ = ("_mesh", "_name", "_spec")

    def __init__(self, mesh: MeshRef, name: str, spec: EndpointSpec) -> None:
        self._mesh = mesh
        self._name = name
        self._spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``TypeError``: an endpoint is called by an adverb, such as ``call`` or
        ``call_one``."""
        raise TypeError(f"{self._full_name} is an endpoint: {self._how(args, kwargs)}")

    def __await__(self) -> NoReturn:
        raise TypeError(
            f"{self._full_name} is an endpoint, and was not called: "
            f"`await {self._full_name}.call(...)`"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        import difflib  # For mistakes only.

        text = f"{self._full_name} is an endpoint, and has no {name!r}"
        near = difflib.get_close_matches(name, _ADVERBS, 1)
        if near:
            raise AttributeError(f"{text}; did you mean {near[0]!r}?")
        raise AttributeError(f"{text}: {self._how((), {}, '...')}")

    def __repr__(self) -> str:
        return f"<endpoint {self._full_name} on {self._members}>"

    @property
    def _full_name(self) -> str:
        return f"{self._mesh.name}.{self._name}"

    @property
    def _members(self) -> str:
        number = len(self._mesh.procs)
        return "1 rank" if number == 1 else f"{number} ranks"

    def _how(self, args: Any, kwargs: Any, placeholder: str = "") -> str:
        """Return words for an error message that say how to call the endpoint with these arguments.

        ``placeholder`` replaces the arguments.
        """
        words = [_in_short(value) for value in args]
        words += [f"{name}={_in_short(value)}" for name, value in kwargs.items()]
        call = f"{self._full_name}.call({placeholder or ', '.join(words)})"
        return (
            f"`{call}.get()` calls it on {self._members}, and waits for the answers "
            f"(`await {call}` in async code; `call_one` is for a mesh of one)"
        )

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call all members; return a future of their answers, as a mesh of values.

        The future waits for all of them, then raises the ``ActorError`` of the lowest rank that
        raised. A member that dies ends the wait at once, with ``SupervisionError``.
        """
        mesh = self._mesh
        promise = self._send_call(args, kwargs)
        return make_future(promise, resolve_call(mesh.shape, mesh, self._name))

    def _send_call(
        self, args: Any, kwargs: Any, wrap: Callable[[Any], Any] | None = None
    ) -> Promise[Any]:
        """Send the call to all members; the promise is set with their answers. ``wrap`` changes the
        arguments at the receiver.
        """
        sink = CallSink(self._mesh.proc_uids, self)
        self._send_to_sink(sink, args, kwargs, wrap).sent(sink.promise)
        return sink.promise

    def _send_to_sink(
        self,
        sink: CallSink | StreamSink,
        args: Any,
        kwargs: Any,
        wrap: Callable[[Any], Any] | None = None,
    ) -> lending.LentMessage:
        """Send the call to all members, whose answers go into ``sink``; return the message."""
        lent = lending.LentMessage(self._mesh.proc_uids)
        data = self._dump(args, kwargs, lent, wrap)
        port = process.current().node.open_port(sink, self._mesh.proc_uids)
        sink.sent = self._sent(port, len(self._mesh.procs))
        self._send_all(data, port)
        return lent

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the only member; return a future of its answer. Raises ``ValueError`` if there are
        more."""
        if len(self._mesh.procs) != 1:
            raise ValueError(
                f"call_one requires exactly 1 actor, but mesh has {len(self._mesh.procs)}: "
                f"{self._full_name}.call(...) calls all, and one of them is "
                f"`{self._mesh.name}.slice({', '.join(f'{dim}=0' for dim in self._mesh.labels)})`"
            )
        return self._call_rank(0, args, kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one random member; return a future of its answer."""
        return self._call_rank(random.randrange(len(self._mesh.procs)), args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Call all members; return a future for each answer, in the order in which answers
        arrive."""
        sink = StreamSink(self._mesh.proc_uids, self)
        self._send_to_sink(sink, args, kwargs).sent(*sink.promises)
        resolve = resolve_one(self._mesh, self._name)
        return iter([make_future(promise, resolve) for promise in sink.promises])

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send the message to all members without waiting. An endpoint that raises fails its actor.

        Delivery is not confirmed. Dead members do not get the message. On many hosts, where hosts
        forward messages, live members behind a host that is lost at this moment may miss it too; a
        log line names that host. Use ``call`` if you must know.
        """
        self._send_all(self._dump(args, kwargs), 0)
        sent = self._sent(0, len(self._mesh.procs))
        if sent is not None:
            sent_call_ends(sent, is_ok=True)
        sender = sending_actor()
        if sender:
            self._tell_undelivered(sender)

    def _tell_undelivered(self, sender: Uid) -> None:
        """Report to ``sender`` each member that is known to be dead and so did not get the
        message.
        """
        node = process.current().node
        for rank, proc in enumerate(self._mesh.procs):
            failure = node.failure_of(proc.uid)
            if failure is not None:
                target = f"{self._mesh.name} (rank {rank})"
                node.on_undelivered(sender, target, self._name, failure.reason)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call all members without waiting; their return values become distributed tensors.

        ``@endpoint(propagate=...)`` gives the shapes of the result: a function from fake tensors to
        fake tensors, or "inspect" if there is no result.
        """
        return offered("rref")(self, args, kwargs)

    def _call_rank(self, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[R]:
        mesh = self._mesh
        proc = mesh.procs[rank]
        lent = lending.LentMessage([proc.uid])
        data = self._dump(args, kwargs, lent)
        node = process.current().node
        sink = OneSink(proc.uid, self, rank)
        port = node.open_port(sink, [proc.uid])
        sink.sent = self._sent(port, 1)
        try:
            node.outboxes.call(mesh, rank, self._message(rank, port), data.data, data.buffers)
        except BaseException:
            node.calls.close(port)
            raise
        lent.sent(sink.promise)
        return make_future(sink.promise, resolve_one(mesh, self._name))

    def _sent(self, port: int, num: int) -> SentCall | None:
        """Return what the event ring records of this call; ``None`` if this process has no ring."""
        ring = process.current().node.ring
        if ring is None:
            return None
        actor = running.get()
        uid, rank = ("", 0) if actor is None else (actor.record.uid, actor.record.rank)
        return ring, ring.clock(), uid, rank, self._mesh.uid, self._name, port, num

    def send_to_port(self, args: Any, kwargs: Any, port: Port[Any] | None, selection: str) -> None:
        """Send a message whose answers go into ``port``, as ``send`` describes."""
        data = self._dump(args, kwargs)
        number, proc = (0, None) if port is None else (port._address.port, port._address.proc)
        if selection == "all":
            self._send_all(data, number, proc)
            return
        rank = random.randrange(len(self._mesh.procs))
        message = self._message(rank, number, proc)
        node = process.current().node
        node.outboxes.call(self._mesh, rank, message, data.data, data.buffers)

    def asked(self, rank: int) -> Asked | None:
        """Return the member whose answer the caller waits for, to find rings of waiting actors.

        ``None`` if the answer may come from another process or by way of another host. It could
        then arrive after later messages of the member.
        """
        mesh = self._mesh
        if self._spec.explicit_response_port or mesh.place is not None:
            return None
        return Asked(mesh.procs[rank], mesh.uid, self._name)

    def _dump(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lent: lending.LentMessage | None = None,
        wrap: Callable[[Any], Any] | None = None,
    ) -> payload.Payload:
        method, called = self._spec.method, self._full_name
        num_own = 2 if self._spec.explicit_response_port else 1
        check_arguments(method, num_own, args, kwargs, called)
        with lent or lending.LentMessage(self._mesh.proc_uids, answers=False):
            message = (args if wrap is None else wrap(args), kwargs)
            dump = functools.partial(payload.dump, message)
            return dump_or_say(dump, called, method, num_own, args=args, kwargs=kwargs)

    def _send_all(
        self, data: payload.Payload, port: int, port_proc: ProcAddress | None = None
    ) -> None:
        data.for_many(len(self._mesh.procs))
        agent = process.current()
        node = agent.node
        try:
            crosses = check_undivided(agent.code_states, self._mesh, self._name)
            node.outboxes.cast(
                self._mesh,
                lambda rank: self._message(rank, port, port_proc, crosses),
                data.data,
                data.buffers,
            )
        except BaseException:
            if port_proc is None:
                node.calls.close(port)  # A call that was not sent is not answered.
            raise

    def _message(
        self, rank: int, port: int, port_proc: ProcAddress | None = None, crosses: int = 0
    ) -> Call:
        mesh, agent = self._mesh, process.current()
        return Call(
            actor=mesh.uid,
            method=self._name,
            rank=rank,
            labels=mesh.labels,
            sizes=mesh.sizes,
            sender=agent.node.uid,
            sender_actor="" if port else sending_actor(),
            port=port,
            port_proc=port_proc,
            explicit_response_port=self._spec.explicit_response_port,
            generation=agent.gate.generation,
            root=agent.gate.root,
            crosses=crosses,
            trace=telemetry.current_trace(),
        )


def _in_short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else "..."


_ADVERBS = ("broadcast", "call", "call_one", "choose", "rref", "stream")


class NotAnEndpoint:
    """A plain method of an actor class, reached through its mesh."""

    def __init__(self, mesh: MeshRef, name: str, method: Callable[..., Any]) -> None:
        self.mesh = mesh
        self.name = name
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(self._advice())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(self._advice())

    def _advice(self) -> str:
        return (
            f"Actor {self.mesh.class_name}.{self.name} is not annotated as an endpoint. To call "
            "it as one, add a @endpoint decorator to it, or directly wrap it in one "
            f"as_endpoint(obj.{self.name}).call(...)"
        )


def as_endpoint(
    not_an_endpoint: Any, *, propagate: Any = None, explicit_response_port: bool = False
) -> Endpoint[..., Any]:
    """Return an endpoint for a plain method of a spawned mesh.

    Raises ``ValueError`` for anything else.
    """
    if not isinstance(not_an_endpoint, NotAnEndpoint):
        raise ValueError("expected an method of a spawned actor")
    spec = EndpointSpec(not_an_endpoint.method, explicit_response_port, propagate=propagate)
    return Endpoint(not_an_endpoint.mesh, not_an_endpoint.name, spec)


def send(
    endpoint: Endpoint[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: str = "all",
) -> None:
    """Send a message whose answers go into ``port``; ``selection`` is "all" or "choose".

    ``endpoint`` may also be a remote function, which runs on the active mesh. Raises ``ValueError``
    for another ``selection``.
    """
    if selection not in ("all", "choose"):
        raise ValueError(f"selection must be 'all' or 'choose', not {selection!r}")
    endpoint.send_to_port(args, kwargs, port, selection)


def concurrent_endpoint(
    method: Callable[..., Any] | None = None,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark a coroutine method as an endpoint during which its actor handles further messages."""

    def mark(function: Callable[..., Any]) -> EndpointProperty[..., Any]:
        if isinstance(function, EndpointProperty):
            raise ValueError("concurrent_endpoint does not wrap @endpoint: use it instead")
        if not inspect.iscoroutinefunction(function):
            raise ValueError("concurrent_endpoint can only wrap async endpoints")
        return EndpointProperty(
            function, propagate, explicit_response_port, instrument, concurrent=True
        )

    return mark if method is None else mark(method)
