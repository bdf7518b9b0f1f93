"""An order of a code switch that waits for its answer, and the texts that answer it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from monarch.core.code_switch.effects import AnswerOrder, Reason
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome
from monarch.wire.message import BusyActor


class Desk:
    """A queue of the work of an order. The thread that waits for the order's answer does it."""

    def __init__(self) -> None:
        self._items: deque[Callable[[], None] | ReloadOutcome] = deque()
        self._arrived: Promise[None] = Promise()
        self._lock = threading.Lock()
        self._is_left = False

    def put(self, item: Callable[[], None] | ReloadOutcome) -> None:
        """Add work, or the answer. From any thread."""
        with self._lock:
            is_left = self._is_left
            self._items.append(item)
            arrived = self._arrived
        if is_left:
            self._clear()
        arrived.set(None)

    def wait(self) -> ReloadOutcome:
        """Do the work that arrives until the answer arrives; return the answer.

        After Ctrl-C, other threads do the remaining work.
        """
        try:
            while True:
                self._arrived.wait()
                with self._lock:
                    item = self._items.popleft()
                    if not self._items:
                        self._arrived = Promise()
                if isinstance(item, ReloadOutcome):
                    return item
                item()
        except BaseException:
            with self._lock:
                self._is_left = True
            self._clear()
            raise

    def _clear(self) -> None:
        with self._lock:
            items, self._items = list(self._items), deque()
        for item in items:
            if not isinstance(item, ReloadOutcome):
                in_background(item)


class OpenOrder:
    """An order that waits for its answer. ``reply`` is called with the answer; ``outcome`` is the
    result so far.

    Work that takes time is done at ``desk``. If there is no desk, it is done on a thread of its
    own.
    """

    def __init__(self, reply: Callable[[ReloadOutcome], None], desk: Desk | None = None) -> None:
        self.outcome = ReloadOutcome()
        self._reply = reply
        self._desk = desk

    def work(self, work: Callable[[], None]) -> None:
        """Queue the work, and return at once."""
        if self._desk is None:
            in_background(work)
        else:
            self._desk.put(work)

    def refuse(self, label: str, why: str) -> None:
        """Add a refusal; ``label`` names the process that refuses."""
        self.outcome.refused.append(RefusedFile(label, why))

    def end(self) -> None:
        """Send the reply, with all reasons for a refusal so far."""
        self._reply(self.outcome)

    def answer(
        self,
        answer: AnswerOrder,
        *,
        label: str,
        author: str,
        unheard: Sequence[RefusedFile],
        busy: Callable[[], Sequence[BusyActor]],
    ) -> None:
        """Send the reply, with the reasons of ``answer`` as texts.

        ``label`` names this process, ``author`` the author of the push in progress. ``unheard`` are
        refusals that procs gave when no order waited for their answers. ``busy`` returns the busy
        actors.
        """
        outcome = self.outcome
        for reason, uid in answer.reasons:
            if reason is Reason.OTHERS:
                outcome.busy = f"{author or uid} pushes at this moment"
            elif reason is Reason.REFUSED:
                outcome.refused = outcome.refused or [*unheard]
            elif reason is Reason.SILENT:
                self.refuse(label, f"the process {uid} has not answered for {answer.seconds:g} s")
            elif reason is Reason.BUSY:
                outcome.late += [
                    RefusedFile(
                        label,
                        f"{actor.name} {actor.rank} is busy with {actor.method}, which is not its "
                        "owner's call, and may wait for an actor that has stopped for the switch: "
                        "nothing has changed; push again",
                    )
                    for actor in busy()
                ] or [RefusedFile(label, "an actor could not be halted in time: push again")]
            else:
                text = f"{uid} {reason.value}" if uid else reason.value
                outcome.late.append(RefusedFile(label, text))
        outcome.refused.sort(key=lambda refused: _by_rank(refused.rank))
        self._reply(outcome)


def in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="monarch-reload", daemon=True).start()


def _by_rank(name: str) -> tuple[int, str]:
    """Return a key that sorts answers by rank. The answer of this process, which has no rank, comes
    first.
    """
    last = name.rpartition(" ")[2]
    return (int(last), name) if last.isdecimal() else (-1, name)
