"""Ends an unused allocation: each host knows how long it has been idle, and asks the others before
it ends.

A host that a run does not need must not end under the run, so all hosts must have been idle for
that long. A host that gives no answer has ended, or its link is cut: then the wait is twice as
long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.message import HostState, IdleLimit, Inspect

_log = logging.getLogger("monarch.host")

_LOOKS = 10  # within the limit
_LONGEST_LOOK_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_ABOUT = 0.8  # of the limit, as the hosts did not learn it at the same moment


class IdleWatch:
    """Calls ``end`` once none of an allocation's hosts was used for the time that a client has set.

    It runs on the loop of ``node``.
    """

    def __init__(
        self, node: Node, is_in_use: Callable[[], bool], end: Callable[[], object]
    ) -> None:
        self._node = node
        self._is_in_use, self._end = is_in_use, end
        self._seconds = 0.0
        self._others: tuple[ProcAddress, ...] = ()
        self._used_at = node.loop.time()
        self._generation = 0
        node.on(IdleLimit, self._on_limit)

    @property
    def limit(self) -> float | None:
        """The seconds without use after which this host ends; ``None`` for never."""
        return self._seconds or None

    def idle_seconds(self) -> float:
        now = self._node.loop.time()
        if self._is_in_use():
            self._used_at = now
        return now - self._used_at

    def _on_limit(self, order: IdleLimit) -> None:
        self._seconds = order.seconds
        self._others = tuple(host for host in order.others if host.uid != self._node.uid)
        self._used_at = self._node.loop.time()
        self._generation += 1
        for host in self._others:
            if self._node.failure_of(host.uid) is None:
                self._node.address_book.peer_up(host)
        self._node.answer(order)
        if self._seconds > 0:
            self._look_later(self._generation)

    def _look_later(self, generation: int) -> None:
        seconds = min(_LONGEST_LOOK_SECONDS, self._seconds / _LOOKS)
        self._node.loop.call_later(seconds, lambda: self._look(generation))

    def _look(self, generation: int) -> None:
        if generation != self._generation:
            return
        if self.idle_seconds() < self._seconds:
            self._look_later(generation)
            return
        node = self._node
        answers = [
            node.ask(host, Inspect()) for host in self._others if node.failure_of(host.uid) is None
        ]
        node.loop.call_later(_ANSWER_SECONDS, lambda: self._decide(generation, answers))

    def _decide(self, generation: int, answers: list[Promise[Response[HostState]]]) -> None:
        if generation != self._generation:
            return
        responses = [answer.value for answer in answers if answer.is_set]
        states = [response.answer for response in responses if not response.error]
        # A silent host may be in use, behind a link that is cut.
        needed = self._seconds * (2.0 if len(states) < len(answers) else 1.0)
        if self.idle_seconds() >= needed and all(
            state.idle_seconds >= self._seconds * _ABOUT for state in states
        ):
            _log.warning(
                "nobody has used this allocation for %s: it ends, as `--idle-timeout` had it",
                _in_words(self._seconds),
            )
            self._end()
            return
        self._look_later(generation)


def _in_words(seconds: float) -> str:
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:g} s"
