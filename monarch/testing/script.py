"""Scripted failures: the nth call of an endpoint does something else instead of running.

The call is handled as usual: it arrives, waits for its turn, and is unpickled by the actor. Only
its arguments are replaced: they raise, end the proc, or wait when they are unpickled.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.wire import payload
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Call


class Script:
    """The rules of a test, and the calls counted so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[tuple[Uid, Uid, str], list[_ScriptRule]] = {}

    def add(
        self, procs: Sequence[Uid], actor: Uid, method: str, nth: int, action: Callable[[], object]
    ) -> None:
        """Make the ``nth`` call from now on, in each of ``procs``, run ``action``."""
        if nth < 1:
            raise ValueError(f"calls are counted from 1, not {nth}")
        with self._lock:
            for proc in procs:
                self._rules.setdefault((proc, actor, method), []).append(_ScriptRule(nth, action))

    def applied(self, proc: Uid, envelope: Envelope[Call]) -> Envelope[Call]:
        """Return the call as it must be handled in ``proc``, changed if a rule is due."""
        call = envelope.message
        if not self._rules:
            return envelope
        with self._lock:
            rules = self._rules.get((proc, call.actor, call.method), [])
            due = [rule for rule in rules if rule.is_due()]
            rules[:] = [rule for rule in rules if rule.num_left > 0]
        if not due:
            return envelope
        data = payload.dump(_Instead(due[0].action, envelope))
        return Envelope(envelope.route, call, data.data, data.buffers)


@dataclass
class _ScriptRule:
    """A rule that ``action`` runs in place of the call that makes ``num_left`` 0."""

    num_left: int
    action: Callable[[], object]

    def is_due(self) -> bool:
        """Count a call; return whether it is the one to replace."""
        self.num_left -= 1
        return self.num_left == 0


_numbers = itertools.count()
_actions: dict[int, tuple[Callable[[], object], Envelope[Call]]] = {}


class _Instead:
    """Calls a function when it is unpickled, and then becomes the arguments of the call.

    The function itself need not be picklable.
    """

    def __init__(self, action: Callable[[], object], envelope: Envelope[Call]) -> None:
        self._number = next(_numbers)
        _actions[self._number] = action, envelope

    def __reduce__(self) -> tuple[Any, ...]:
        return _do, (self._number,)


def _do(number: int) -> object:
    action, envelope = _actions.pop(number)
    action()
    return payload.load(envelope.payload, envelope.buffers)


def raises(error: BaseException) -> Callable[[], object]:
    """Return a function that raises ``error`` as if the endpoint had."""

    def act() -> object:
        raise error

    return act


def dies(code: int) -> Callable[[], object]:
    """Return a function that ends the proc: with a status, or by the signal ``-code``."""
    return lambda: os.kill(os.getpid(), -code) if code < 0 else os._exit(code)


class Hold:
    """A call that waits before its endpoint runs, until the test releases it."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._released = threading.Event()

    def __call__(self) -> None:
        self._reached.release()
        self._released.wait()

    def wait_reached(self, timeout: float = 20.0) -> None:
        """Wait until the call has arrived and waits. Raises ``TimeoutError`` after ``timeout``
        seconds."""
        if not self._reached.acquire(timeout=timeout):
            raise TimeoutError(f"the call that is to be held did not come within {timeout} s")

    def release(self) -> None:
        """Let the call run. Later calls with this hold do not wait."""
        self._released.set()
