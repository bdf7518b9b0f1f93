"""The held calls in the procs of a host or client, and reports about them."""

from __future__ import annotations

import linecache
import threading
import time
from collections import deque
from collections.abc import Callable

from monarch.core.holds import HeldTime, all_stand, begun, gone_on
from monarch.net.loop import Timer
from monarch.runtime.links.network import Gone
from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message import HeldCalls, HoldsAsked, HoldsChanged, SourceAsked

_TOLD_SECONDS = 2.0
_MOST_LOST = 32


class HoldBook:
    """The record of held calls. Runs on the node's I/O loop. ``tell`` is called with a sentence,
    once for each place at which calls are held, and ``on_held`` with whether any call is held.
    ``source_of`` returns the text of a file to debuggers on hosts that lack it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: The calls of each proc that are held, or may be held again before they end.
        self._holds: dict[Uid, tuple[HoldNote, ...]] = {}
        #: The ids of the calls that were reported, or will be with the next report.
        self._known: set[str] = set()
        #: The calls of the next report.
        self._new: list[HoldNote] = []
        #: Calls that were held when their proc ended.
        self._lost: deque[LostHold] = deque(maxlen=_MOST_LOST)
        #: The waits of the last report of new calls, and of the last that no call is held. They may
        #: be over.
        self._new_timer: Timer | None = None
        self._over_timer: Timer | None = None
        #: Whether a report says that clocks are stopped.
        self._has_told = False
        #: How long a report waits after the first call for those of other ranks.
        self.together_seconds = 0.4
        #: For how long clocks had been stopped in all at the last report that they run again.
        self._held_before = 0.0
        #: For how long clocks were stopped.
        self.time = HeldTime()
        self.tell: Callable[[str], None] = lambda text: None
        self.on_held: Callable[[bool], None] = lambda is_held: None
        self.source_of: Callable[[str], str] = lambda file: "".join(linecache.getlines(file))
        node.on(SourceAsked, self._on_source)
        node.on(HoldsChanged, self._on_changed)
        node.on(HoldsAsked, self._on_asked)
        node.on_gone.append(self._forget_gone)

    def all(self) -> list[HoldNote]:
        """Return all calls that are held, or may be held again before they end. Any thread may call
        this.
        """
        return [hold for holds in list(self._holds.values()) for hold in holds]

    def standing(self) -> list[HoldNote]:
        """Return the calls that wait for a person. From any thread."""
        return [hold for hold in self.all() if hold.is_waiting]

    def seconds(self) -> float:
        """Return for how many seconds held calls have stopped timeouts so far. From any thread."""
        return self.time.seconds(self._node.loop.time())

    def forget(self, proc: Uid, reason: str = "") -> None:
        """Forget a proc that has ended, and its held calls.

        With a ``reason``, its held calls stay in the list of lost calls, which is shown to people.
        """
        holds = self._holds.pop(proc, None)
        if holds is not None:
            now = time.time()
            self._lost.extend(LostHold(hold, reason, now) for hold in holds if reason)
            self._count()

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is not Gone.EXPECTED and uid in self._holds:
            failure = self._node.failure_of(uid)
            reason = "" if failure is None or failure.expected else failure.reason
            self._node.loop.call_soon(lambda: self.forget(uid, reason))

    def _on_changed(self, changed: HoldsChanged) -> None:
        if changed.holds:
            self._holds[changed.proc] = changed.holds
        else:
            self._holds.pop(changed.proc, None)
        new = [hold for hold in changed.holds if hold.is_waiting and hold.id not in self._known]
        ids = {hold.id for hold in self.all()}
        self._known &= ids
        self._new = [hold for hold in self._new if hold.id in ids]
        if new:
            self._known.update(hold.id for hold in new)
            if not self._new:
                if self._new_timer is not None:
                    # The wait of a report that was made early, or whose calls have all ended.
                    self._new_timer.cancel()
                self._new_timer = self._node.loop.call_later(self.together_seconds, self._tell_new)
            self._new += new
            if all_stand(self._new):
                self._tell_new()
        self._count()

    def _count(self) -> None:
        is_held = bool(self.standing())
        if is_held != self.time.is_held:
            self.time.hold(is_held, self._node.loop.time())
            self.on_held(is_held)
            if not is_held:
                self._over_timer = self._node.loop.call_later(_TOLD_SECONDS, self._tell_over)
            elif self._over_timer is not None:
                self._over_timer.cancel()

    def _tell_over(self) -> None:
        """Report that timeouts run again, because no call is held any longer.

        Between two commands of a debugger no call is held for a moment; that is not reported.
        """
        if self._has_told:
            self._has_told = False
            seconds, self._held_before = self.seconds() - self._held_before, self.seconds()
            self.tell(gone_on(seconds))

    def _tell_new(self) -> None:
        ids = {hold.id for hold in self.all()}
        new, self._new = [hold for hold in self._new if hold.id in ids], []
        self._has_told = self._has_told or bool(new)
        for sentence in begun(new):
            self.tell(sentence)

    def _on_asked(self, order: HoldsAsked) -> None:
        addresses = {proc: self._node.address_of(proc) for proc in list(self._holds)}
        self._node.answer(order, HeldCalls(tuple(self.all()), addresses, tuple(self._lost)))

    def _on_source(self, order: SourceAsked) -> None:

        def answer() -> None:
            text, error = "", ""
            try:
                text = self.source_of(order.file)
            except Exception as failed:
                error = str(failed)
            self._node.answer(order, text, error)

        # A file is read, and the answer may need another process first.
        threading.Thread(target=answer, name="monarch-source", daemon=True).start()
