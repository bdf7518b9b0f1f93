"""One fence as a process knows it: who has yet to come to it, whom it holds up, and its end."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from monarch.runtime.promise import Promise
from monarch.runtime.workspace.turnovers.procs_asked import Asked
from monarch.runtime.workspace.turnovers.telling import Telling
from monarch.wire.address import Uid

__all__ = ["Stand"]

_LOOK_SECONDS = 0.1


class Stand:
    """``attempt`` counts the fences of a push. ``number`` is that of ours in the mailboxes here.

    ``own`` is set when all actors of this process have come to it, or past it. ``fenced`` are the
    processes to which it holds back what we send, and ``asked`` are the procs among them.
    ``holds`` tells whether it holds back what was sent to one of our own actors.
    """

    def __init__(self, attempt: int, telling: Telling, holds: Callable[[], bool]) -> None:
        self.attempt = attempt
        self.number = 0
        self.own: Promise[None] = Promise()
        self.fenced: set[Uid] = set()
        self.asked: list[Asked] = []
        self.held: Promise[None] = Promise()
        self.given_up: Promise[None] = Promise()
        self.dropped: Promise[None] = Promise()
        self._telling = telling
        self._holds = holds
        self._held_at = 0.0
        self._sent: set[Uid] = set()
        self._come: set[Uid] = set()

    def sent(self, procs: Iterable[Uid]) -> None:
        """Something was sent behind it, to these if it is theirs too. From any thread."""
        behind = self.fenced.intersection(procs)
        self._sent |= behind
        if behind & self._come:
            self.hold()

    def come(self, proc: Uid) -> None:
        """All actors of that process stand at it."""
        self._come.add(proc)
        if proc in self._sent:
            self.hold()

    def hold(self) -> None:
        """It holds somebody up from here on."""
        if not self.held.is_set:
            self._held_at = time.monotonic()
            self.held.set(None)

    def drop(self) -> None:
        """Nobody asks any longer who has come to it."""
        self.given_up.set(None)
        self.dropped.set(None)

    def wait(self, promises: Sequence[Promise[Any]], seconds: float | None) -> bool:
        """Whether all ``promises`` are set before it is given up.

        That is at once when somebody says so, or ``seconds`` after it has begun to hold somebody
        up. As long as it holds up nobody, waiting harms nobody.
        """
        there = _all_of(promises)
        ends = [there, self.given_up]
        self._wait_until_held(_first_of([*ends, self.held]))
        if not there.is_set and not self.given_up.is_set:
            left = None if seconds is None else self._held_at + seconds - time.monotonic()
            self._telling.wait(_first_of(ends).wait, left)
        return there.is_set and not self.given_up.is_set

    def _wait_until_held(self, first: Promise[None]) -> None:
        if self._telling.wait(first.wait, _LOOK_SECONDS):
            return
        # It takes long: from here on it may be waited for often, which a promise would remember.
        event = threading.Event()
        first.on_set(event.set)
        while not self._telling.wait(event.wait, _LOOK_SECONDS):
            if self._holds():
                self.hold()

    def is_passed(self, seconds: float | None) -> bool:
        """Whether all have come past it, since it was given up, within ``seconds``."""
        there = _all_of([self.own, *(asked.answer for asked in self.asked)])
        _first_of([there, self.dropped]).wait(seconds)
        return there.is_set


def _all_of(promises: Sequence[Promise[Any]]) -> Promise[None]:
    done: Promise[None] = Promise()
    left = set(range(len(promises)))

    def over(index: int) -> None:
        left.discard(index)
        if not left:
            done.set(None)

    for index, promise in enumerate(promises):
        promise.on_set(functools.partial(over, index))
    if not promises:
        done.set(None)
    return done


def _first_of(promises: Sequence[Promise[Any]]) -> Promise[None]:
    first: Promise[None] = Promise()
    for promise in promises:
        promise.on_set(lambda: first.set(None))
    return first
