"""The answers that are still expected, and the processes that they must come from.

Every request that expects an answer opens a port with a sink. Each answer is passed to the port's
sink; the death of a process is passed to every sink that still waits for it. A sink says when it is
complete, and the table then forgets the port. Answers to a forgotten port, and second answers of
one rank, have no effect.
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
        """Handle the death of a process; return true if this ends the wait."""
        ...


class CallTable:
    """The open ports of a process. Safe to use from any thread.

    Port numbers begin at a number that depends on ``life``, which is another after each restart of
    the process. So an answer to a call from before a restart finds no port, and is dropped.
    """

    def __init__(self, life: int = 0) -> None:
        self._sinks: dict[int, Sink] = {}
        self._numbers = itertools.count((life << LIFE_BITS) + 1)

    def __len__(self) -> int:
        return len(self._sinks)

    def open(self, sink: Sink) -> int:
        """Return a new port, whose answers are passed to ``sink``."""
        port = next(self._numbers)
        self._sinks[port] = sink
        return port

    def sink(self, port: int) -> Sink | None:
        """Return the sink of ``port``; None if the port is not open."""
        return self._sinks.get(port)

    def sinks(self) -> list[Sink]:
        """Return the sinks of all open ports. From any thread."""
        return list(self._sinks.copy().values())

    def close(self, port: int) -> None:
        self._sinks.pop(port, None)

    def receive(self, port: int, rank: int, answer: Any) -> None:
        """Pass an answer to the sink of ``port``; close the port if the sink is complete."""
        sink = self._sinks.get(port)
        if sink is not None and sink.receive(rank, answer):
            self._sinks.pop(port, None)

    def mark(self, port: int, taken: Callable[[], None]) -> None:
        """Call ``taken`` once the reader has taken all earlier answers to ``port``.

        It is called at once if the port is closed, or if its sink does not keep answers for a
        reader.
        """
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
        """Tell all sinks that the process ``uid`` has died; close each port whose sink needs no
        further answers.

        With ``before``, tell only the sinks of ports with lower numbers: ports opened later wait
        for a new process with that uid.
        """
        # A copy, since other threads open and close ports meanwhile.
        sinks = list(self._sinks.copy().items())
        if before is not None:
            sinks = [(port, sink) for port, sink in sinks if port < before]
        for port, sink in sinks:
            if sink.down(uid, failure):
                self._sinks.pop(port, None)


class Collector(Generic[T]):
    """The answers of a ``call``: one from each target, in the order of the ranks.

    ``receive`` and ``down`` return true once: when the last answer has come, or a death has ended
    the wait. ``failure`` says which death it was; it is None if ``answers`` is complete.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self.targets = targets
        self._missing = set(range(len(targets)))
        self.answers: list[T | None] = [None] * len(targets)
        self.failure: MeshFailure | None = None

    @property
    def missing(self) -> list[int]:
        """The ranks whose answers are missing."""
        return [] if self.is_complete else sorted(self._missing)

    @property
    def is_complete(self) -> bool:
        return not self._missing or self.failure is not None

    @property
    def is_answered(self) -> bool:
        """Whether all ranks have answered, and no answer says that the call failed."""
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
