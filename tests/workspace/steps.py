"""Watching the messages of a push as this process sends them, to strike at one of them.

The author, the owner and the steps between them are the real ones: only the moment at which
somebody is killed, or a disk fills up, is chosen here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from monarch.core.code_switch.barrier import SwitchBarrier
from monarch.core.code_switch.table import ParticipantState
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import Inspect, Message, Order, Replies, Reply, Sync
from monarch_sync.messages import decode
from tests.support import wait_for

__all__ = [
    "CALLER", "PLAYER", "STEPS", "Stamps", "Strike", "step_of", "struck", "wait_for_fence",
]  # fmt: skip

PLAYER = """
import os

from monarch.actor import Actor, context, endpoint

MARK = 0


class Player(Actor):
    @endpoint
    def stamp(self):
        return context().generation, MARK

    @endpoint
    def pid(self):
        return os.getpid()
"""

CALLER = """
from threading import Thread

from monarch.actor import Actor, Channel, endpoint
from monarch.errors import GenerationBehind


class Caller(Actor):
    @endpoint
    def ask(self, players):
        return ask(players)

    @endpoint
    def ask_later(self, players, answers):
        start, wait = Channel.open()

        def work():
            wait.recv().get(timeout=60)
            answers.send(ask(players))

        Thread(target=work, daemon=True).start()
        return start


def ask(players):
    try:
        return sorted(mark for _, mark in players.stamp.call().get(timeout=30).values())
    except GenerationBehind as behind:
        return str(behind)
"""
"""Calls all players, and says what they run, or why it may not call them."""

STEPS = ["StageRequest", "prepare", "fence", "halt", "Commit", "patch"]
"""What the author of a push asks of hosts and procs, in order."""


def step_of(message: Message, payload: Any) -> str:
    """Which step of a push a message is; empty for none."""
    if isinstance(message, Sync):
        return type(decode(bytes(payload))).__name__
    if isinstance(message, Order):
        return message.kind.value
    return type(message).__name__ if isinstance(message, Inspect) else ""


class Strike(NamedTuple):
    """Do ``action`` once, before or after ``step`` is sent to ``target`` (to anybody: "")."""

    step: str
    action: Callable[[], object]
    target: Uid = ""
    is_after: bool = False


@contextmanager
def struck(strike: Strike) -> Iterator[list[str]]:
    """Within the block the strike hits this process's pushes; gives the steps that were sent."""
    node = process.current().node
    ask = node.ask
    seen: list[str] = []
    lock = threading.Lock()
    has_struck = False

    def watched(
        to: ProcAddress, request: Any, payload: Any = b"", buffers: Any = (), **how: Any
    ) -> Any:
        nonlocal has_struck
        step = step_of(request, payload)
        with lock:
            seen.append(step)
            is_due = step == strike.step and strike.target in ("", to.uid) and not has_struck
            has_struck = has_struck or is_due
        if is_due and not strike.is_after:
            strike.action()
        answer = ask(to, request, payload, buffers, **how)
        if is_due and strike.is_after:
            answer.wait(30.0)
            strike.action()
        return answer

    node.ask = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del node.ask  # type: ignore[method-assign]
    assert has_struck, f"no {strike.step} was sent: {seen}"


def wait_for_fence(num_processes: int) -> SwitchBarrier:
    """The fence of a push of this process's, once it was sent to so many, to itself too."""
    machine = session_of(process.current()).reload.machine

    def fence() -> SwitchBarrier | None:
        # The one of an earlier push is there until the next is prepared.
        found = machine.fence if machine.state is ParticipantState.FENCING else None
        return found if found is not None and len(found.fenced) == num_processes else None

    found = wait_for(fence, what="the fence")
    assert found is not None
    return found


class Stamps:
    """The generation on every answer that comes to this process, by the port it came to."""

    def __init__(self) -> None:
        self.by_port: dict[int, dict[int, int]] = {}
        self._node = process.current().node
        self._before = {kind: self._node._handlers[kind] for kind in (Reply, Replies)}
        for kind in self._before:
            self._node.handle(kind, self._watch, on_any_thread=kind is Reply)

    def _watch(self, envelope: Envelope[Message]) -> None:
        message = envelope.message
        if isinstance(message, Reply):
            if not message.refused:
                self.by_port.setdefault(message.port, {})[message.rank] = message.generation
        elif isinstance(message, Replies):
            for item in message.items:
                if not item.refused:
                    self.by_port.setdefault(message.port, {})[item.rank] = item.generation
        self._before[type(message)](envelope)

    def seen(self) -> set[int]:
        return {stamp for stamps in self._copies().values() for stamp in stamps.values()}

    def check(self) -> None:
        """No call has met two generations."""
        mixed = {p: stamps for p, stamps in self._copies().items() if len(set(stamps.values())) > 1}
        assert not mixed, f"calls that met several generations: {mixed}"

    def _copies(self) -> dict[int, dict[int, int]]:
        """A copy of the present answers; more may come in meanwhile, on other threads."""
        return {port: dict(stamps) for port, stamps in list(self.by_port.items())}

    def close(self) -> None:
        for kind, handler in self._before.items():
            self._node.handle(kind, handler, on_any_thread=kind is Reply)
