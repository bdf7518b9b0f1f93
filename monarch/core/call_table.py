"""The answers that are still expected, and the processes they are expected from.

Every request that wants an answer opens a port with a sink. An answer goes into the port's
sink; the death of a process goes into every sink that still waits for it. A sink says when it
is complete, and the table then forgets the port. Answers to a forgotten port, and second
answers of one rank, change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from monarch.errors import MeshFailure

LIFE_BITS = 40
"""Numbers that a process counts begin at its life, shifted by so many bits."""

T = TypeVar("T")


class Sink(Protocol):
    """Takes the answers that arrive at one port."""

    def receive(self, rank: int, answer: Any) -> bool:
        """Handle an answer; return true if the sink needs no further answers."""
        ...

    def down(self, uid: str, failure: MeshFailure) -> bool:
        """A process has died; true when this ends the wait."""
        ...


class CallTable:
    """The open ports of a process. Safe to use from any thread.

    Ports of another ``life`` of the process have other numbers, so a late answer finds no port.
    """

    def __init__(self, life: int = 0) -> None:
        self._sinks: dict[int, Sink] = {}
        self._numbers = itertools.count((life << LIFE_BITS) + 1)

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, sink: Sink) -> int:
        """A new port, whose answers go to ``sink``."""
        port = next(self._numbers)
        self._sinks[port] = sink
        return port

    def sink(self, port: int) -> Sink | None:
        """The sink of ``port``, if it is open."""
        return self._sinks.get(port)

    def sinks(self) -> list[Sink]:
        """The sinks of all open ports. From any thread."""
        return list(self._sinks.copy().values())

    def close(self, port: int) -> None:
        self._sinks.pop(port, None)

    def receive(self, port: int, rank: int, answer: Any) -> None:
        """An answer has arrived at ``port``."""
        sink = self._sinks.get(port)
        if sink is not None and sink.receive(rank, answer):
            self._sinks.pop(port, None)

    def mark(self, port: int, taken: Callable[[], None]) -> None:
        """Call ``taken`` once all answers that came to ``port`` before have been taken."""
        # Only sinks that keep answers until their reader asks for them have it.
        mark = getattr(self._sinks.get(port), "mark", None)
        if mark is None:
            taken()
        else:
            mark(taken)

    def next_port(self) -> int:
        """Return a new port number, larger than all before."""
        return next(self._numbers)

    def down(self, uid: str, failure: MeshFailure, before: int | None = None) -> None:
        """The process ``uid`` has died; stop all sinks waiting for it.

        With ``before``, only ports with lower numbers stop: later ports wait for answers from
        another process of that uid.
        """
        # A copy, since other threads open and close ports meanwhile.
        waiting = list(self._sinks.copy().items())
        if before is not None:
            waiting = [(port, sink) for port, sink in waiting if port < before]
        for port, sink in waiting:
            if sink.down(uid, failure):
                self._sinks.pop(port, None)


class Collector(Generic[T]):
    """The answers of a ``call``: one from each target, in the order of the ranks.

    Pure bookkeeping: ``receive`` and ``down`` return true once, when the outcome is known;
    then ``answers`` is complete, or ``failure`` says which death ended the wait.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self.targets = targets
        self._missing = set(range(len(targets)))
        self.answers: list[T | None] = [None] * len(targets)
        self.failure: MeshFailure | None = None

    @property
    def missing(self) -> list[int]:
        """The ranks that are waited for."""
        return [] if self.is_complete else sorted(self._missing)

    @property
    def is_complete(self) -> bool:
        return not self._missing or self.failure is not None

    @property
    def is_answered(self) -> bool:
        """Whether all have answered, and none with a failure, as far as their answers tell."""
        return self.failure is None and not any(getattr(a, "failed", False) for a in self.answers)

    def receive(self, rank: int, answer: T) -> bool:
        if rank not in self._missing or self.failure is not None:
            return False
        self._missing.remove(rank)
        self.answers[rank] = answer
        return not self._missing

    def down(self, uid: str, failure: MeshFailure) -> bool:
        if self.is_complete or all(self.targets[rank] != uid for rank in self._missing):
            return False
        self.failure = failure
        return True
