"""One actor: its mailbox, its state, and what it does with a message.

Messages run strictly one at a time. What an actor does is written once, as coroutines, for
actors with a thread of their own and for those on the asyncio loop; ``cell_runners`` has the two.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from monarch.core.mailbox import Delivery, Fence, Lift, Mailbox
from monarch.errors import ActorError, MeshFailure, SupervisionError, format_remote
from monarch.runtime.context import ActorRecord, Running, running
from monarch.runtime.endpoint_spec import EndpointSpec
from monarch.runtime.port import Port, dump_error
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import PortAddress, ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import PING, Call, Reply, StopActor

__all__ = ["ActorCell", "CellHost", "Event", "Fail", "Judge", "Reloaded", "refusal"]

_log = logging.getLogger("monarch.actor")

Event = Delivery | Fence | Lift

_PING_SPEC = EndpointSpec(lambda instance: None)


class Judge(NamedTuple):
    """Work: ask ``__supervise__`` about a failure, and pass its verdict on."""

    failure: MeshFailure
    verdict: Callable[[bool], None]


class Reloaded(NamedTuple):
    """Work: the class was patched; tell the instance."""

    change: Any


class Fail(NamedTuple):
    """Work: the actor has failed for a reason that lies elsewhere."""

    reason: str


Work = Envelope | Judge | Reloaded | Fail


class CellHost(Protocol):
    """What a cell needs of the agent that holds it."""

    @property
    def uid(self) -> Uid: ...

    def send_reply(self, to: ProcAddress, reply: Reply, data: payload.Payload) -> None: ...

    def address_of(self, uid: str) -> ProcAddress: ...

    def fence_reached(self, cell: ActorCell, number: int) -> None: ...

    def cell_failed(self, cell: ActorCell, reason: str) -> list[Promise[Any]]: ...

    def cell_ending(self, cell: ActorCell) -> list[Promise[Any]]: ...

    def cell_ended(self, cell: ActorCell) -> None: ...

    def answer(self, uid: str, port: int, error: str = "") -> None: ...


class ActorCell:
    """Construction, calls, failure and end of an actor."""

    def __init__(self, record: ActorRecord, host: CellHost) -> None:
        self.record = record
        self.cls: type | None = None
        self.instance: Any = None
        self.failure: str | None = None
        self.ended: Promise[None] = Promise()
        self.is_ended = False
        self._host = host
        self._mailbox = Mailbox()
        self._tasks: dict[asyncio.Task[None], tuple[Call, Coroutine[Any, Any, Any]]] = {}

    def deliver(self, event: Event) -> None:
        """Put something into the inbox. From any thread."""
        raise NotImplementedError

    def _take(self) -> Event | None:
        """The next event of the inbox, if there is one. From any thread."""
        raise NotImplementedError

    async def _wait(self, ends: list[Promise[Any]]) -> None:
        """Wait until all ``ends`` are set, but not for ever."""
        raise NotImplementedError

    async def _settle(self, result: Awaitable[Any] | Any) -> Any:
        """The value of what user code returned, awaited where it has to be."""
        raise NotImplementedError

    async def _perform(self, work: Work) -> None:
        if isinstance(work, Judge):
            work.verdict(bool(await self._run_hook("__supervise__", work.failure)))
        elif isinstance(work, Reloaded):
            await self._run_hook("__reload__", work.change)
        elif isinstance(work, Fail):
            await self._fail(work.reason, RuntimeError(work.reason))
        elif isinstance(work.message, Call):
            await self._call(work, work.message)
        elif isinstance(work.message, StopActor):
            await self._stop(work.message)
        else:
            await self._construct(work)

    async def _construct(self, envelope: Envelope) -> None:
        record = self.record
        try:
            cls, args, kwargs = payload.load(envelope.payload, envelope.buffers)
            self.cls = cls
            # The instance exists before __init__ runs, so that context() works inside it.
            self.instance = cls.__new__(cls)
            running.set(Running(record, self.instance, record.rank, record.labels, record.sizes))
            self.instance.__init__(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = _users_part(error)
            reason = f"{record.name}.__init__ failed.\n{format_remote(error)}"
            self.instance = None
            await self._fail(reason, error)

    async def _call(self, envelope: Envelope, call: Call) -> None:
        if self.failure is not None:
            self.refuse(call)
            return
        spec: EndpointSpec | None = None
        running.set(Running(self.record, self.instance, call.rank, call.labels, call.sizes))
        try:
            spec = self._endpoint(call)
            args, kwargs = payload.load(envelope.payload, envelope.buffers)
            if spec.explicit_response_port:
                args = (Port(PortAddress(self._answer_to(call), call.port), call.rank), *args)
            result = spec.method(self.instance, *args, **kwargs)
            # Not any awaitable: a mesh is one, and may be what the endpoint returns.
            if not inspect.iscoroutine(result):
                self._returned(call, spec, result)
            elif not spec.is_concurrent:
                self._returned(call, spec, await self._settle(result))
            else:
                self._start_task(call, spec, result)
        except BaseException as error:
            await self._raised(call, spec, error)

    def _start_task(self, call: Call, spec: EndpointSpec, result: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._complete(call, spec, result))
        self._tasks[task] = call, result
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        call, result = self._tasks.pop(task)
        if task.cancelled():
            self.refuse(call)
        result.close()  # It may have been cancelled before it began.

    async def _cancel_tasks(self) -> None:
        current = asyncio.current_task() if self._tasks else None
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _complete(self, call: Call, spec: EndpointSpec, result: Awaitable[Any]) -> None:
        try:
            self._returned(call, spec, await result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._raised(call, spec, error)

    def _endpoint(self, call: Call) -> EndpointSpec:
        assert self.cls is not None
        if call.method == PING:
            return _PING_SPEC
        # Looked up at each call, so that a reload shows at once.
        for base in self.cls.__mro__:
            if call.method in vars(base):
                found = vars(base)[call.method]
                spec = getattr(found, "endpoint_spec", None)
                if isinstance(spec, EndpointSpec):
                    return spec
                return EndpointSpec(found, call.explicit_response_port)
        raise AttributeError(
            f"{self.cls.__qualname__} has no endpoint {call.method!r}: was it removed by a reload?"
        )

    def _answer_to(self, call: Call) -> ProcAddress:
        return call.port_proc or self._host.address_of(call.sender)

    def _returned(self, call: Call, spec: EndpointSpec, value: Any) -> None:
        if call.port and not spec.explicit_response_port:
            self._reply(call, payload.dump(value), failed=False)

    def _reply(
        self, call: Call, data: payload.Payload, *, failed: bool, refused: bool = False
    ) -> None:
        reply = Reply(call.port, call.rank, self._host.uid, failed, refused)
        self._host.send_reply(self._answer_to(call), reply, data)

    async def _raised(self, call: Call, spec: EndpointSpec | None, error: BaseException) -> None:
        """An endpoint raised: tell the caller who waits; where nobody waits, fail."""
        is_ordinary = isinstance(error, Exception)
        error.__traceback__ = _users_part(error)
        ending = "failed." if is_ordinary else "failed with BaseException."
        message = f"Actor call {self.record.name}.{call.method} {ending}"
        waits = call.port and not (spec is not None and spec.explicit_response_port)
        if waits:
            self._reply(call, dump_error(ActorError(error, message)), failed=True)
        if not waits or not is_ordinary:
            await self._fail(f"{message}\n{format_remote(error)}", error)
        if not waits:
            self.refuse(call)

    async def _fail(self, reason: str, error: BaseException) -> None:
        if self.failure is None and not self.is_ended:
            self.failure = reason
            ends = self._host.cell_failed(self, reason)
            await self._cancel_tasks()
            await self._wait(ends)
            await self._run_hook("__cleanup__", error)

    def refuse(self, call: Call) -> None:
        """Answer a call to an actor that has failed or ended."""
        if call.port:
            why = self.failure or "it was stopped"
            data = refusal(self.record.name, self.record.rank, call, why)
            self._reply(call, data, failed=True, refused=True)

    async def _stop(self, stop: StopActor) -> None:
        ends = self._host.cell_ending(self)
        await self._cancel_tasks()
        if self.failure is None:
            await self._wait(ends)
            await self._run_hook("__cleanup__", None)
        self.is_ended = True
        self.ended.set(None)
        self._host.cell_ended(self)
        self._host.answer(stop.sender, stop.port)
        for event in self._mailbox.drain():
            self._turn_away(event)
        self.turn_away()

    def turn_away(self) -> None:
        """Answer what arrived after the end. From any thread."""
        while (event := self._take()) is not None:
            self._turn_away(event)

    def _turn_away(self, event: Event) -> None:
        work = event.work if isinstance(event, Delivery) else None
        if isinstance(work, Envelope) and isinstance(work.message, Call):
            self.refuse(work.message)
        elif isinstance(work, Envelope) and isinstance(work.message, StopActor):
            self._host.answer(work.message.sender, work.message.port)

    async def _run_hook(self, name: str, argument: Any) -> Any:
        """Call ``__supervise__``, ``__cleanup__`` or ``__reload__`` where defined."""
        hook = getattr(self.instance, name, None)
        if hook is None:
            return None
        record = self.record
        running.set(Running(record, self.instance, record.rank, record.labels, record.sizes))
        try:
            result = hook(argument)
            return await self._settle(result) if inspect.iscoroutine(result) else result
        except Exception:
            _log.exception("%s of %s raised", name, record.name)
            return None


def _users_part(error: BaseException) -> Any:
    """The traceback without our own frames above the user's."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback or error.__traceback__


def refusal(name: str, rank: int, call: Call, why: str) -> payload.Payload:
    """The error that a call to a dead or unknown actor gets."""
    message = f"Endpoint call {name}.{call.method or 'initialized'}() failed, {why}"
    failure = MeshFailure(name, (rank,), why)
    return dump_error(SupervisionError(message, call.method, failure))
