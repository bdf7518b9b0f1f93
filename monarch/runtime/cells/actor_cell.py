"""One actor: its mailbox, its state, and how it handles a message.

Messages run strictly one at a time. The work of an actor is written once, as coroutines, for actors
with a thread of their own and for those on the asyncio loop; ``cell_runners`` has the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Hashable, Iterator
from typing import Any, Protocol

from monarch.core.event_ring import CallsInHand
from monarch.core.mailbox import Delivery, Mailbox, Reached
from monarch.errors import MeshFailure, format_remote
from monarch.net.io_loop import IoLoop
from monarch.runtime.cells import actor_log, loans
from monarch.runtime.cells.actor_loops import ActorLoop
from monarch.runtime.cells.call_watch import CallWatch, is_again
from monarch.runtime.cells.cell_answers import CellAnswers, error_of_rank, failed_in_words
from monarch.runtime.cells.cell_work import CellTasks, Event, Fail, Judge, Reloaded, Work
from monarch.runtime.cells.endpoint_spec import EndpointSpec, Wrap, finder, surrounded
from monarch.runtime.cells.hooks import Hooks, users_part
from monarch.runtime.cells.undelivered import Undelivered
from monarch.runtime.context import ActorRecord, Running, running
from monarch.runtime.node import Node
from monarch.runtime.port import Port
from monarch.runtime.promise import Promise
from monarch.runtime.waits import Wait, waits
from monarch.wire import payload
from monarch.wire.address import PortAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import Call, Message, StopActor

_log = logging.getLogger("monarch.actor")

_LOADING_SECONDS = 60.0  # the longest wait for another thread's import
_loading = threading.RLock()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let only one thread at a time import classes in this block.

    If one thread imports a package and another a part of it, each waits for a lock that the other
    has; Python then goes on with half a package, which torch, for one, does not survive. The wait
    has a limit, as an import may run a user's code.
    """
    has_turn = _loading.acquire(timeout=_LOADING_SECONDS)
    try:
        yield
    finally:
        if has_turn:
            _loading.release()


class CellHost(Protocol):
    """The parts of an agent that its cells use."""

    node: Node
    spoiled: str
    watch: CallWatch | None

    @property
    def io_loop(self) -> IoLoop | None:
        """The loop for which the threads of actors poll while they have nothing to do."""
        ...

    def actor_loop(self, name: str) -> ActorLoop: ...

    def fence_reached(self, cell: ActorCell, item: Reached) -> None: ...

    def cell_failed(self, cell: ActorCell, failure: MeshFailure) -> None: ...

    def cell_ending(self, cell: ActorCell) -> list[Promise[Any]]: ...

    def cell_ended(self, cell: ActorCell) -> None: ...


class ActorCell:
    """Construction, calls, failure and end of an actor."""

    def __init__(self, record: ActorRecord, host: CellHost) -> None:
        self.record = record
        #: The actor's class; None before the order to make it was unpickled.
        self.cls: type | None = None
        #: The user's object; None before it is made, and once a failed actor has cleaned up.
        self.instance: Any = None
        #: Why the actor has failed; None as long as it has not.
        self.failure: MeshFailure | None = None
        #: Set when the actor has ended. `is_ended` says the same, without a wait.
        self.ended: Promise[None] = Promise()
        self.is_ended = False
        #: True from the moment at which the end begins: what the actor owns ends first.
        self.is_ending = False
        #: The endpoint in hand, for reports that wait for its end.
        self.method = ""
        #: The file and line where a debugger holds the actor's call; "" if none does.
        self.held_at = ""
        self._host = host
        #: Used only on the thread or task that runs the actor.
        self._mailbox = Mailbox()
        self._find_endpoint = finder(record.name, lambda: self.cls)
        #: The calls that have begun and are not answered, for reports about this process.
        self.in_hand = CallsInHand(host.node.ring, record.uid, record.rank)
        self.hooks = Hooks(record, self._settle)
        #: Why the actor fails once the current message is done; "" if it does not.
        self._doom = ""
        #: True when ``__init__`` has returned or raised.
        self.is_made = False
        #: True when the time to stop is up, so that no further call begins.
        self._is_cut_off = False
        self.answers = CellAnswers(record, host.node, self.in_hand)
        #: The concurrent endpoints that run.
        self._tasks = CellTasks(self._refuse)

    @property
    def is_holding(self) -> bool:
        """Whether a message waits behind a fence that the actor has reached. From any thread."""
        return self._mailbox.is_holding

    @property
    def thread_id(self) -> int:
        """The thread that runs the actor, or its loop; 0 before there is one. From any thread."""
        raise NotImplementedError

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The asyncio task of an actor that runs on a loop; None for others. From any thread."""
        return None

    def wait_in_hand(self) -> Wait | None:
        """The answer that the current message waits for; None if it waits for none. From any
        thread."""
        raise NotImplementedError

    def _wait_by(self, who: Hashable) -> Wait | None:
        """Return the wait of a thread or task of this actor; None if it does not wait."""
        wait = waits.get(who)
        is_ours = wait is not None and wait.running.record.uid == self.record.uid
        is_over = self.is_ending or self.is_ended or wait is None or wait.promise.is_set
        return wait if is_ours and not is_over else None

    def deliver(self, event: Event) -> None:
        """Put an event into the inbox. From any thread."""
        raise NotImplementedError

    def _take(self) -> Event | None:
        """Return the next event of the inbox; None if it is empty."""
        raise NotImplementedError

    async def _wait(self, ends: list[Promise[Any]]) -> None:
        """Wait until all ``ends`` are set, but only for a limited time."""
        raise NotImplementedError

    async def _settle(self, result: Awaitable[Any] | Any, seconds: float | None = None) -> Any:
        """Return the result of user code; if it must be awaited, await it for ``seconds`` at
        most."""
        raise NotImplementedError

    def surround(self, wrap: Wrap) -> None:
        """Wrap each endpoint: ``wrap`` gets the endpoint and its name and returns the replacement.
        Any thread may call this.
        """
        self._find_endpoint = surrounded(self._find_endpoint, wrap)

    def judge(self, judge: Judge) -> None:
        """Ask ``__supervise__`` about a failure, after the current message. From any thread."""
        self.deliver(Delivery("supervision", judge, is_urgent=True))

    def fail(self, fail: Fail) -> None:
        """Fail, for a reason outside of this actor, once the current message is done."""
        self.deliver(Delivery("supervision", fail, is_urgent=True))

    @property
    def num_waiting(self) -> int:
        """The number of messages that wait for their turn. From any thread."""
        return len(self._mailbox)

    def doom(self, reason: str) -> None:
        """Fail once the current message is done. Call it on the actor's own thread or task."""
        self._doom = self._doom or reason

    async def _perform(self, work: Work) -> bool:
        """Do one piece of work; return whether it is a call that must be run again."""
        if isinstance(work, Envelope) and isinstance(work.message, Call):
            is_again = await self._call(work, work.message)
        else:
            is_again = False
            await self._act(work)
        if self._doom:
            reason, self._doom = self._doom, ""
            await self._fail(reason, RuntimeError(reason))
        return is_again

    async def _act(self, work: Work) -> None:
        if isinstance(work, Judge):
            await self._judge(work)
        elif isinstance(work, Reloaded):
            is_fit = self.failure is None and self.instance is not None
            work.heard(await self.hooks.reloaded(self.instance, work.change) if is_fit else None)
        elif isinstance(work, Undelivered):
            await self._hear_of_undelivered(work)
        elif isinstance(work, Fail):
            await self._fail(work.reason, work.error, work.cause)
        elif isinstance(work.message, StopActor):
            await self._stop(work.message)
        elif self.failure is None:
            await self._construct(work)

    async def _construct(self, envelope: Envelope[Message]) -> None:
        record = self.record
        try:
            if self._host.spoiled:
                raise RuntimeError(self._host.spoiled)
            with _one_at_a_time():
                cls, args, kwargs = payload.load(envelope.payload, envelope.buffers)
            self.cls = cls
            # The instance exists before __init__ runs, so that context() works inside it.
            self.instance = cls.__new__(cls)
            running.set(Running(record, self.instance, record.rank, record.labels, record.sizes))
            actor_log.start()
            # On the thread of its endpoints, so that they find what belongs to a thread or a loop:
            # the current CUDA device, a task that __init__ starts.
            self.instance.__init__(*args, **kwargs)
            self.in_hand.note("idle")
        except BaseException as error:
            error.__traceback__ = users_part(error)
            reason = f"{record.name}.__init__ failed.\n{format_remote(error)}"
            self.instance = None
            await self._fail(reason, error)
        finally:
            self.is_made = True

    async def _call(self, envelope: Envelope[Message], call: Call) -> bool:
        if self.failure is not None or self._is_cut_off:
            self.answers.give_back(call, self.failure)
            return False
        gate, watch = self._host.node.gate, self._host.watch
        if watch is not None and watch.is_early(self.record.uid):
            return True
        if call.generation > gate.generation and gate.is_behind(call):
            self.answers.refuse_behind(call)
            return False
        if call.crosses and gate.has_come_between(call):
            self.answers.refuse_crossing(call)
            return False
        call.generation = gate.generation
        self.method = call.method
        self.in_hand.begins(id(call), call.method, call.sender, call.port, call.arrived)
        spec, lent = None, list[loans.Ended]()
        running.set(Running(self.record, self.instance, call.rank, call.labels, call.sizes))
        try:
            spec = self._find_endpoint(call)
            args, kwargs = payload.load(envelope.payload, envelope.buffers)
            lent = loans.noted()
            if spec.explicit_response_port:
                port = PortAddress(self.answers.receiver_of(call), call.port)
                args = (Port(port, call.rank), *args)
            if self._host.watch is not None:
                self._host.watch.begins()
            result = spec.method(self.instance, *args, **kwargs)
            # Not any awaitable: a mesh is one, and may be what the endpoint returns.
            if inspect.iscoroutine(result):
                if spec.is_concurrent:
                    self._tasks.start(
                        call, result, self._complete(envelope, call, spec, result, lent)
                    )
                    return False
                result = await self._settle(result)
            if self._host.watch is not None:
                self._host.watch.ended()
            self.answers.returned(call, spec, loans.end(lent, result))
        except BaseException as error:
            lent = loans.failed(lent, error)
            if (watch := self._host.watch) is not None and not lent and is_again(watch, error):
                return True
            await self._raised(call, spec, error)
        return False

    def _again(self, item: Delivery) -> None:
        """Queue a call to be run again, after the events that have arrived meanwhile, such as new
        code."""
        assert self._host.watch is not None
        self._host.watch.await_code(self.record.uid)
        while (event := self._take()) is not None:
            self._mailbox.feed(event)
        self._mailbox.put_back(item)

    async def _complete(
        self,
        envelope: Envelope[Message],
        call: Call,
        spec: EndpointSpec,
        result: Awaitable[Any],
        lent: Any,
    ) -> None:
        try:
            value = await result
            if self._host.watch is not None:
                self._host.watch.ended()
            self.answers.returned(call, spec, loans.end(lent, value))
        except BaseException as error:
            loans.end(lent, None, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            if (watch := self._host.watch) is not None and not lent and is_again(watch, error):
                self.deliver(Delivery(call.sender, envelope))
                return
            await self._raised(call, spec, error)

    async def _raised(self, call: Call, spec: EndpointSpec | None, error: BaseException) -> None:
        """Handle an error of an endpoint: send it to the caller if it waits, else fail."""
        self.in_hand.ends(id(call), call.generation, is_ok=False)
        is_cut_off = self._is_cut_off and isinstance(error, asyncio.CancelledError)
        if self.failure is not None or is_cut_off:
            self._refuse(call)
            return
        error.__traceback__ = users_part(error)
        message = failed_in_words(self.record, call.method, error)
        waits = call.port and not (spec is not None and spec.explicit_response_port)
        if waits and isinstance(error, Exception):
            self.answers.raised(call, error_of_rank(self.record, error, message))
            return
        self._mark_failed(f"{message}\n{format_remote(error)}")
        if self._tasks.has_any or hasattr(self.instance, "__cleanup__"):
            # Cancelling and cleaning up take time, for which the caller need not wait.
            self._refuse(call)
            await self._end_failed(error)
        else:
            # Tell the owner first: if it is the caller, it knows by the time its call fails.
            await self._end_failed(error, call)

    async def _fail(
        self, reason: str, error: BaseException, cause: MeshFailure | None = None
    ) -> None:
        self._mark_failed(reason, cause)
        await self._end_failed(error)

    def _mark_failed(self, reason: str, cause: MeshFailure | None = None) -> None:
        """Mark the actor as failed; every later call to it is refused."""
        if self.failure is None:
            record = self.record
            self.failure = MeshFailure(
                record.name, (record.rank,), reason, members=(record.title,), cause=cause
            )
            self.in_hand.note("failed", reason)

    async def _end_failed(self, error: BaseException, caller: Call | None = None) -> None:
        """End everything that the actor owns, run its ``__cleanup__``, and notify the owner.

        Without ``__cleanup__`` the owner is notified first, and then what the actor owned ends.
        After the owner was notified, the call ``caller`` gets the failure as its answer.
        """
        failure = self.failure
        if failure is None or self.is_ending or self.is_ended:
            if caller is not None:
                self._refuse(caller)
            return
        self.is_ending = True
        ends = self._host.cell_ending(self)
        await self._tasks.cancel()
        if not hasattr(self.instance, "__cleanup__"):
            self._host.cell_failed(self, failure)
            if caller is not None:
                self._refuse(caller)
            self._let_go()
            await self._wait(ends)
            return

        def conclude(trouble: str) -> None:
            reason = f"{failure.reason}\n{trouble}".strip() if trouble else failure.reason
            self._host.cell_failed(self, failure.with_reason(reason))

        await self._wait(ends)
        await self.hooks.clean_up(self.instance, error, conclude, self.end)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the instance of a failed actor, to free its memory (a model, say)."""
        self.instance = None
        running.set(None)

    def _refuse(self, call: Call) -> None:
        self.answers.refuse(call, self.failure)

    async def _stop(self, stop: StopActor) -> None:
        def conclude(trouble: str) -> None:
            if trouble and not stop.port:
                _log.error("%s", trouble)
            self._host.cell_ended(self)
            self.end()
            self._host.node.answer(stop, error=trouble)

        ends = self._host.cell_ending(self)
        await self._tasks.cancel()
        if self.failure is None:
            self.is_ending = True
            await self._wait(ends)
            if hasattr(self.instance, "__cleanup__"):
                await self.hooks.clean_up(self.instance, None, conclude, self.end)
                return
        conclude("")

    def cut_off(self) -> None:
        """Begin no further call, because the time to stop is up. From any thread."""
        self._is_cut_off = True

    def end(self) -> None:
        """Stop taking messages, and refuse those in the mailbox."""
        self.is_ended = True
        self.in_hand.note("stopped")
        self.ended.set(None)
        for event in self._mailbox.drain():
            self._turn_away(event)
        self.turn_away()

    def turn_away(self) -> None:
        """Refuse the messages that arrived after the end. From any thread."""
        while (event := self._take()) is not None:
            self._turn_away(event)

    def _turn_away(self, event: Event) -> None:
        work = event.work if isinstance(event, Delivery) else None
        if isinstance(work, Envelope) and isinstance(work.message, Call):
            self.answers.give_back(work.message, self.failure)
        elif isinstance(work, Envelope) and isinstance(work.message, StopActor):
            self._host.node.answer(work.message)
        elif isinstance(work, Reloaded):
            work.heard(None)

    async def _hear_of_undelivered(self, message: Undelivered) -> None:
        if self.failure is None:
            reason = await self.hooks.undelivered(self.instance, message)
            if reason:
                await self._fail(reason, RuntimeError(str(message)))

    async def _judge(self, judge: Judge) -> None:
        if self.failure is None:
            judge.verdict(*await self.hooks.supervise(self.instance, judge.failure))
