"""Runs the ``__reload__`` hooks of all actors of a process, one after another, with a time limit.

Actors run it in the order in which they were spawned, each on the thread or loop of its endpoints.
The first hook that raises, or does not return in time, ends the round: the new code is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from monarch.core.mailbox import Delivery
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.cells.cell_work import Reloaded

HOOK = "__reload__"

Done = Callable[["ActorCell | None", "BaseException | None"], None]


class ReloadRound:
    """Runs the reload hooks of the ``cells`` that have one, each within ``seconds``.

    ``done`` is called once, on any thread: with the first actor that refuses and its reason, or
    with ``None`` twice. ``told`` are the actors whose hook has completed.
    """

    def __init__(
        self, cells: Sequence[ActorCell], change: object, seconds: float, done: Done
    ) -> None:
        self._waiting = [cell for cell in cells if wants_to_know(cell)]
        self._change = change
        self._seconds = seconds
        self._done = done
        self._turn = 0
        self._lock = threading.Lock()
        self.told: list[ActorCell] = []

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        if not self._waiting:
            self._done(None, None)
            return
        cell = self._waiting.pop(0)
        turn = self._turn
        timer = threading.Timer(
            self._seconds, lambda: self._heard(turn, cell, _late(self._seconds))
        )
        timer.daemon = True

        def heard(error: BaseException | None) -> None:
            timer.cancel()
            self._heard(turn, cell, error)

        timer.start()
        cell.deliver(Delivery("reload", Reloaded(self._change, heard), is_urgent=True))

    def _heard(self, turn: int, cell: ActorCell, error: BaseException | None) -> None:
        with self._lock:
            if turn != self._turn:
                return  # The hook returned too late, or just before its time was up.
            self._turn += 1
        if error is not None:
            self._done(cell, error)
        else:
            self.told.append(cell)
            self._next()


def wants_to_know(cell: ActorCell) -> bool:
    return cell.failure is None and not cell.is_ended and hasattr(cell.instance, HOOK)


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(
        f"it had not returned after {seconds:g} s; it runs between two messages, so it should "
        "only take over what has changed"
    )
