"""A participant's effects on its own process during a code switch: on mailboxes and spawns.

It also sees what is sent behind the fence, because that may keep the sender waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.address import Uid
from monarch.wire.message import BusyActor

if TYPE_CHECKING:
    from monarch.core.code_switch.barrier import SwitchBarrier


class Fencing:
    """Raises and lifts the fences of a switch in this process.

    ``fence`` returns the switch's last fence, or None. ``on_held`` is called, on the loop, when the
    fence begins to delay a process.
    """

    def __init__(
        self,
        agent: ProcAgent,
        fence: Callable[[], SwitchBarrier | None],
        on_held: Callable[[], None],
    ) -> None:
        self._agent = agent
        self._node = agent.node
        self._fence = fence
        self._on_held = on_held
        self._number = 0
        # Procs that are to give way: what was sent to them before the fence is sent again.
        self._kept: set[Uid] = set()

    def raise_for(
        self, sender: Uid, exempt: Callable[[], Collection[Uid]], reached: Callable[[], None]
    ) -> None:
        """Raise the fence, which holds back all messages of ``sender`` that come after this call.

        ``reached`` is called when all actors of this process are at the fence, apart from the
        actors whose uids ``exempt`` returns.
        """
        self._agent.spawn_gate.on_held = self._hold
        self._node.outboxes.behind_fence.watch(self._sent, self._hold)
        with self._node.casting:
            self._number = self._agent.fences.raise_for(sender, reached, exempt)

    def keep(self, procs: Iterable[Uid]) -> None:
        """Hold back messages to these procs from now on. They are for the new procs that will
        replace these procs.
        """
        for uid in procs:
            self._agent.kept_spawns.hold(uid)
            self._kept.add(uid)

    def release(self, procs: Iterable[Uid] | None = None) -> None:
        """Send the messages that were held back for the replacements of these procs to the procs
        themselves, because they are not replaced after all.

        ``None``: the messages for all procs.
        """
        for uid in self._kept if procs is None else self._kept.intersection(procs):
            self._agent.kept_spawns.release(uid)
        self._kept = set() if procs is None else self._kept.difference(procs)

    def lift(self) -> None:
        """Lift the fence: all actors continue as if it had not been raised, and an actor that
        reaches it later passes.
        """
        self.release()
        self._agent.fences.give_up(self._number)
        self._let_spawn()

    def halt(self, halted: Callable[[], None]) -> None:
        self._agent.fences.halt(self._number, halted)

    def resume(self) -> None:
        self._agent.fences.resume(self._number)

    def end(self) -> None:
        """End the switch: no mailbox waits at the fence any longer."""
        self._agent.fences.lift(self._number)
        self._let_spawn()

    def forget_kept(self) -> None:
        """Forget which procs are replaced, as the switch is done. Messages that are held back for
        the new procs are not dropped.
        """
        self._kept = set()

    def close_gate(self, generation: int, closed: Callable[[], None]) -> None:
        self._agent.spawn_gate.close(generation, closed)

    def busy(self) -> list[BusyActor]:
        """Return the actors that have not reached the fence, or have not halted, and the methods
        that they run.
        """
        cells = self._agent.fences.waiting_for(self._number)
        return [
            BusyActor(cell.record.name, cell.record.rank, _in_words(cell.method, cell.held_at))
            for cell in cells
        ]

    def look(self) -> None:
        """If messages wait behind an actor of this process that has reached the fence, report that
        the fence delays their senders.
        """
        if self._agent.fences.holds_up_any():
            self._hold()

    def _sent(self, procs: Iterable[Uid]) -> None:
        """Note that a message was sent to these procs, and so may wait behind the fence there.

        May be called from any thread, which may hold any lock.
        """
        fence = self._fence()
        if fence is not None and fence.sent(procs):
            self._hold()

    def _hold(self) -> None:
        self._node.outboxes.behind_fence.forget()
        self._node.loop.call_soon(self._on_held)

    def _let_spawn(self) -> None:
        self._agent.spawn_gate.open()
        self._node.outboxes.behind_fence.forget()


def _in_words(method: str, held_at: str) -> str:
    held = f", held at {held_at} for `monarch debug`" if held_at else ""
    return f"{method!r}{held}" if method else ""
