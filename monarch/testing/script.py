"""Failures by script: what the nth call of an endpoint does instead of running.

The call takes its ordinary way: it arrives, waits for its turn, and is unpickled by the actor.
Only its arguments are others: they raise, end the proc, or wait when they are unpickled.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from monarch.wire import payload
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Call


class Script:
    """The rules, and the calls counted so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[tuple[Uid, Uid, str], list[_ScriptRule]] = {}

    def add(
        self, procs: Sequence[Uid], actor: Uid, method: str, nth: int, does: Callable[[], object]
    ) -> None:
        """In each of ``procs`` the ``nth`` call from now on does something else."""
        if nth < 1:
            raise ValueError(f"calls are counted from 1, not {nth}")
        with self._lock:
            for proc in procs:
                self._rules.setdefault((proc, actor, method), []).append(_ScriptRule(nth, does))

    def applied(self, proc: Uid, envelope: Envelope[Call]) -> Envelope[Call]:
        """The call as it should be handled in ``proc``."""
        call = envelope.message
        if not self._rules:
            return envelope
        with self._lock:
            rules = self._rules.get((proc, call.actor, call.method), [])
            due = [rule for rule in rules if rule.is_due()]
            rules[:] = [rule for rule in rules if rule.left > 0]
        if not due:
            return envelope
        data = payload.dump(_Instead(due[0].does, envelope))
        return Envelope(envelope.route, call, data.data, data.buffers)


class _ScriptRule:
    def __init__(self, nth: int, does: Callable[[], object]) -> None:
        self.left = nth
        self.does = does

    def is_due(self) -> bool:
        self.left -= 1
        return self.left == 0


_numbers = itertools.count()
_deeds: dict[int, tuple[Callable[[], object], Envelope[Call]]] = {}


class _Instead:
    """Does its deed where it is unpickled, and is then the arguments of the call after all.

    The deed itself need not be picklable.
    """

    def __init__(self, does: Callable[[], object], envelope: Envelope[Call]) -> None:
        self._number = next(_numbers)
        _deeds[self._number] = does, envelope

    def __reduce__(self) -> tuple[Any, ...]:
        return _do, (self._number,)


def _do(number: int) -> object:
    does, envelope = _deeds.pop(number)
    does()
    return payload.load(envelope.payload, envelope.buffers)


def raises(error: BaseException) -> Callable[[], object]:
    """Raise ``error`` as if the endpoint had."""

    def act() -> object:
        raise error

    return act


def dies(code: int) -> Callable[[], object]:
    """End the proc: with a status, or by the signal ``-code``."""
    return lambda: os.kill(os.getpid(), -code) if code < 0 else os._exit(code)


class Hold:
    """A call that waits at the door of its endpoint until the test lets it in."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._released = threading.Event()

    def __call__(self) -> None:
        self._reached.release()
        self._released.wait()

    def wait_reached(self, timeout: float = 20.0) -> None:
        """Wait until the call is at the door. Raises ``TimeoutError``."""
        if not self._reached.acquire(timeout=timeout):
            raise TimeoutError(f"the call that is to be held did not come within {timeout} s")

    def release(self) -> None:
        """Let it in, and all that come later."""
        self._released.set()
