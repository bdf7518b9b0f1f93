"""Collects the answers to calls and turns them into values or errors for the caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

from monarch.actor.mesh_ref import MeshRef
from monarch.core.call_table import Collector
from monarch.core.event_ring import SentCall, sent_call_ends
from monarch.core.rings import Asked
from monarch.errors import MeshFailure, SupervisionError
from monarch.mesh import Shape, ValueMesh
from monarch.runtime import process
from monarch.runtime.answers import RawReply
from monarch.runtime.context import running
from monarch.runtime.promise import Promise
from monarch.wire import payload

R = TypeVar("R")


def _heard(callee: Callee, error: SupervisionError) -> SupervisionError:
    """Return the error, after marking its failure as handled by the program that gets it."""
    if isinstance(callee, MeshRef) and running.get() is None:
        agent = process.current()
        failed = error.failure.crashed_ranks if error.failure is not None else ()
        keys = [uid for uid in callee.proc_uids if agent.node.failure_of(uid) is not None]
        keys += [f"{callee.uid}[{rank}]" for rank in failed]
        others = [f"{callee.uid}[{rank}]" for rank in callee.shape.ndslice]
        agent.heard_of(keys, [*callee.proc_uids, *others])
    return error


def value_of(reply: RawReply) -> Any:
    """Return the value in an answer, or raise it if it is an error."""
    value = payload.load(reply.payload, reply.buffers)
    if reply.failed:
        raise value
    return value


class Callee(Protocol):
    """The called actor, as errors name it: ``<module.Class name>``."""

    @property
    def name(self) -> str: ...
    @property
    def class_name(self) -> str | None: ...


def died(callee: Callee, method: str, failure: MeshFailure) -> SupervisionError:
    """Return the error of a call whose target is in a dead process."""
    endpoint = f"{callee.name}.{method or 'initialized'}"
    if failure.expected:
        return SupervisionError(
            f"Endpoint call {endpoint}() failed, actor mesh is stopped due to proc mesh shutdown: "
            f"the proc {failure.mesh_name} has ended, {failure.reason}",
            endpoint,
            failure,
        )
    who = f"<{callee.class_name} {callee.name}>" if callee.class_name else callee.name
    return SupervisionError(
        f"Endpoint call {endpoint}() failed, The actor {who} and all its descendants have failed: "
        f"the process this actor was running on failed. {failure.report()}",
        endpoint,
        failure,
    )


class Called(Protocol):
    """The called endpoint, which names the members that the caller waits for."""

    def asked(self, rank: int) -> Asked | None:
        """Return the member of this rank; ``None`` if another process may answer for it."""
        ...


def _asked(called: Called | None, ranks: Sequence[int]) -> list[Asked]:
    members = [called.asked(rank) for rank in ranks] if called is not None else []
    return [member for member in members if member is not None]


class OneSink:
    """Collects the only answer of a call."""

    __slots__ = ("_called", "_rank", "_target", "promise", "sent")

    def __init__(self, target: str, called: Called | None = None, rank: int = 0) -> None:
        self._target = target
        self._called = called
        self._rank = rank
        self.promise: Promise[RawReply | MeshFailure] = Promise()
        self.sent: SentCall | None = None

    @property
    def missing(self) -> list[int]:
        """Return the ranks whose answers have not come."""
        return [] if self.promise.is_set else [self._rank]

    def target(self, rank: int) -> str:
        """Return the process of a rank."""
        return self._target

    def receive(self, rank: int, answer: RawReply) -> bool:
        if self.sent is not None:
            sent_call_ends(self.sent, is_ok=not answer.failed)
        self.promise.set(answer)
        return True

    def down(self, uid: str, failure: MeshFailure) -> bool:
        if uid != self._target:
            return False
        if self.sent is not None:
            sent_call_ends(self.sent, is_ok=False)
        self.promise.set(failure)
        return True

    def awaits(self, promise: Promise[Any]) -> list[Asked]:
        """Return the members whose answers must come before ``promise`` is set."""
        return _asked(self._called, [self._rank]) if promise is self.promise else []


class CallSink:
    """Collects one answer from each target of a call."""

    def __init__(self, targets: Sequence[str], called: Called | None = None) -> None:
        self._called = called
        self._collector: Collector[RawReply] = Collector(targets)
        self._lock = threading.Lock()
        self.promise: Promise[Collector[RawReply]] = Promise()
        self.sent: SentCall | None = None
        if self._collector.is_complete:
            self.promise.set(self._collector)

    def receive(self, rank: int, answer: RawReply) -> bool:
        with self._lock:
            is_complete = self._collector.receive(rank, answer) or answer.refused
        return self._complete(is_complete)

    def down(self, uid: str, failure: MeshFailure) -> bool:
        with self._lock:
            is_complete = self._collector.down(uid, failure)
        return self._complete(is_complete)

    def _complete(self, is_complete: bool) -> bool:
        if is_complete:
            if self.sent is not None:
                sent_call_ends(self.sent, is_ok=self._collector.is_answered)
            self.promise.set(self._collector)
        return is_complete

    @property
    def missing(self) -> list[int]:
        """Return the ranks whose answers have not come."""
        with self._lock:
            return self._collector.missing

    def target(self, rank: int) -> str:
        """Return the process of a rank."""
        return self._collector.targets[rank]

    def awaits(self, promise: Promise[Any]) -> list[Asked]:
        return _asked(self._called, self.missing) if promise is self.promise else []


class StreamSink:
    """Sets the next of ``promises`` to each answer, in order of arrival."""

    def __init__(self, targets: Sequence[str], called: Called | None = None) -> None:
        self._targets = targets
        self._called = called
        #: The ranks whose answers have not come; under the lock.
        self._missing = set(range(len(targets)))
        self._lock = threading.Lock()
        self.promises: list[Promise[RawReply | MeshFailure]] = [Promise() for _ in targets]
        #: The promises that are not set yet.
        self._free = deque(self.promises)
        self._num_failed = 0
        self.sent: SentCall | None = None

    @property
    def missing(self) -> list[int]:
        """Return the ranks whose answers have not come."""
        with self._lock:
            return sorted(self._missing)

    def target(self, rank: int) -> str:
        """Return the process of a rank."""
        return self._targets[rank]

    def receive(self, rank: int, answer: RawReply) -> bool:
        return self._give([rank], answer)

    def down(self, uid: str, failure: MeshFailure) -> bool:
        ranks = [rank for rank, target in enumerate(self._targets) if target == uid]
        return self._give(ranks, failure)

    def _give(self, ranks: Sequence[int], answer: RawReply | MeshFailure) -> bool:
        with self._lock:
            fresh = [rank for rank in ranks if rank in self._missing]
            self._missing.difference_update(fresh)
            promises = [self._free.popleft() for _ in fresh]
            self._num_failed += isinstance(answer, MeshFailure) or answer.failed
            is_over = bool(fresh) and not self._missing
        if is_over and self.sent is not None:
            sent_call_ends(self.sent, is_ok=not self._num_failed)
        for promise in promises:
            promise.set(answer)
        return not self._missing

    def awaits(self, promise: Promise[Any]) -> list[Asked]:
        with self._lock:
            missing = list(self._missing)
        # Each promise is for any missing rank: only the last is for a single one.
        is_last = len(missing) == 1 and promise is self.promises[-1]
        return _asked(self._called, missing) if is_last else []


class LazyValues(Sequence[R]):
    """The values of a ``call``; each is unpickled when it is first read."""

    def __init__(self, replies: Sequence[RawReply]) -> None:
        self._replies: list[RawReply | None] = list(replies)
        self._values: list[Any] = [None] * len(replies)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> list[R]: ...
    def __getitem__(self, index: int | slice) -> R | list[R]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        reply = self._replies[index]
        if reply is not None:
            self._values[index] = value_of(reply)
            self._replies[index] = None
        return self._values[index]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._replies)


def resolve_call(
    shape: Shape, callee: Callee, method: str
) -> Callable[[Collector[RawReply]], ValueMesh[Any]]:
    """Return a function that turns collected answers into a mesh of values.

    It raises the error of a dead member first, then of the lowest rank that failed.
    """

    def resolve(collector: Collector[RawReply]) -> ValueMesh[Any]:
        if collector.failure is not None:
            raise _heard(callee, died(callee, method, collector.failure))
        replies = [reply for reply in collector.answers if reply is not None]
        # A dead member first: the others may not have answered yet.
        for reply in sorted(replies, key=lambda reply: not reply.refused):
            if reply.failed:
                _value(callee, reply)
        return ValueMesh(shape, LazyValues(replies))

    return resolve


def _value(callee: Callee, reply: RawReply) -> Any:
    try:
        return value_of(reply)
    except SupervisionError as error:
        if reply.refused:
            _heard(callee, error)
        raise


def resolve_one(callee: Callee, method: str) -> Callable[[RawReply | MeshFailure], Any]:
    """Return a function that turns one answer into its value, or raises its error."""

    def resolve(answer: RawReply | MeshFailure) -> Any:
        if isinstance(answer, MeshFailure):
            raise _heard(callee, died(callee, method, answer))
        return _value(callee, answer)

    return resolve
