"""Ties to host agents: a client's attachment to one, and one agent's watch over others."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Protocol

from monarch.config import settings
from monarch.errors import HostBusy, HostUnreachable, MonarchError
from monarch.net.machine import machine_id, user_name
from monarch.runtime.answers import Response
from monarch.runtime.ends.process_start import parent_of
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Attach, Attached, Detach, ProcDown, ProcUp, Watch, WatchHost

_log = logging.getLogger("monarch.host")
_OUR_MAIN = "monarch/cli/main.py"
_MAX_PROGRAM = 60


class AgentProcess(Protocol):
    """The process of a host agent on this machine, as its job knows it."""

    @property
    def pid(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    def how_ended(self) -> str:
        """Return the exit status of the agent, as far as it is known, and its last output."""


FindProcess = Callable[[], "AgentProcess | None"]


class HostLink:
    """An attachment to a host agent, pending or established.

    ``ready`` is set to ``None`` when the host accepts, or to the error. ``is_lost``: the attachment
    has ended. Messages may be sent to ``address`` at once: they arrive after the request to attach.
    If the agent's ``process`` is known, its end is noticed at any time, and the link waits for the
    host's answer as long as the process lives.
    """

    def __init__(
        self,
        node: Node,
        url: str,
        *,
        takeover: bool = False,
        process: AgentProcess | None = None,
    ) -> None:
        self._node = node
        self._process = process
        #: How many times the time to attach has passed.
        self._num_waits = 0
        #: Whether the host was lost, or left.
        self._has_ended = False
        self.url = url
        self.address = HostUrl.parse(url).address(machine_id())
        self.ready: Promise[MonarchError | None] = Promise()
        #: What the host said of itself when it accepted.
        self.info = Attached()
        #: Whether this program has started the agent, and no job looks after it.
        self.is_own_child = False
        #: Why the host was not attached to; None if it was.
        self._error: MonarchError | None = None
        node.address_book.expect(self.address)
        node.address_book.peer_up(self.address)
        self._timer = node.loop.call_later(settings().attach_timeout_seconds, self._too_late)
        outcome = node.ask(
            self.address,
            Attach(node.address, os.getpid(), who_am_i(), takeover),
        )
        # Before the answer is handled: a refusal ends the peer, and with it the link.
        node.peer_down.on_down.append(self._on_peer_down)
        outcome.on_set(lambda: self._answered(outcome.value))
        if process is not None and process.is_running:
            local = ProcAddress(self.address.uid, self.address.urls, node.address.machine)
            node.failure_detector.watch(local, process.pid, self._process_ended)
        elif process is not None:
            node.loop.call_soon(self._process_ended)

    @property
    def is_lost(self) -> bool:
        # The agent may be back, though this link is over: we may ask it without being its client.
        return self._has_ended or self._node.failure_of(self.address.uid) is not None

    def _answered(self, outcome: Response[Attached]) -> None:
        self._timer.cancel()
        if outcome.error:
            holder = outcome.or_else(self.info).holder
            busy = HostBusy(self.url, holder) if holder else MonarchError(outcome.error)
            self._fail(busy)
            return
        self.info = outcome.answer
        pid, machine = self.info.pid, self.info.machine
        host = ProcAddress(self.address.uid, self.address.urls, machine)
        self._node.failure_detector.watch(host, pid, self._process_ended)
        is_here = machine == self._node.address.machine
        self.is_own_child = self._process is None and is_here and parent_of(pid) == os.getpid()
        self.ready.set(None)

    def _too_late(self) -> None:
        waited = settings().attach_timeout_seconds
        process = self._process
        if process is not None and process.is_running:
            self._num_waits += 1
            _log.warning(
                "the host agent at %s (pid %d) has not answered for %.0f s; its process lives, so "
                "it is waited for",
                self.url,
                process.pid,
                self._num_waits * waited,
            )
            self._timer = self._node.loop.call_later(waited, self._too_late)
            return
        is_secret = self.url.startswith("tcp://") and self._node.keys is not None
        detail = "or it belongs to another job and has another secret" if is_secret else ""
        self._fail(HostUnreachable(self.url, waited, detail))

    def _process_ended(self) -> None:
        how = "" if self._process is None else self._process.how_ended()
        why = how or "the host agent's process ended"
        self._node.peer_down.report(ProcDown(self.address.uid, why))

    def _fail(self, error: MonarchError) -> None:
        if not self.ready.is_set and self._error is None:
            self._error = error
            self._node.peer_down.report(ProcDown(self.address.uid, str(error), expected=True))

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        if uid != self.address.uid:
            return
        self._has_ended = True
        self._node.peer_down.on_down.remove(self._on_peer_down)
        self._timer.cancel()
        # Last, because a thread that waits may attach again at once.
        gone = MonarchError(f"the host agent at {self.url} is gone: {down.reason}")
        self.ready.set(self._error or gone)

    def give_up(self) -> None:
        """Drop the link, because the host is about to end, and that is no failure."""
        self.detach()
        self._node.peer_down.report(ProcDown(self.address.uid, "its job was ended", expected=True))

    def detach(self) -> None:
        """Detach from the host, which stops our procs and waits for the next client."""
        if self._node.failure_of(self.address.uid) is None:
            self._node.send(self.address, Detach(self._node.uid))
        self._node.failure_detector.unexpect(self.address.uid)


def _program() -> str:
    """Return the name of this program, for people.

    If it is our own command, its arguments follow, shortened if they are long.
    """
    first, *others = sys.argv or [""]
    name = os.path.basename(first) or "python"
    if name == "monarch" or first.endswith(_OUR_MAIN):
        words = " ".join(["monarch", *others])
        return words if len(words) <= _MAX_PROGRAM else f"{words[: _MAX_PROGRAM - 3]}..."
    return name


def who_am_i() -> str:
    """Return a description of this client that its user recognises."""
    return f"{_program()} (pid {os.getpid()}, user {user_name()})"


class HostWatch:
    """The hosts that this host agent watches, and the host agents that watch this one.

    All methods run on the node's I/O loop.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        #: By host that this one watches: the procs that are told of its end.
        self._watched: dict[Uid, dict[Uid, ProcAddress]] = {}
        #: The host agents that watch this one.
        self._watched_by: dict[Uid, ProcAddress] = {}
        node.on(WatchHost, self._on_watch_host)
        node.peer_down.on_down.append(self._on_peer_down)

    def _on_watch_host(self, order: WatchHost) -> None:
        host, watcher = order.host, order.watcher
        watchers = self._watched.setdefault(host.uid, {})
        watchers[watcher.uid] = watcher
        if len(watchers) > 1:
            return
        node = self._node
        if node.failure_of(host.uid) is not None:
            node.peer_down.left(host.uid)
        # Expect heartbeats until it introduces itself: then its process can be watched, if it is
        # on this machine.
        node.failure_detector.expect(host.uid)
        node.send(host, Watch(host.uid, node.address))

    def introduce(self, watcher: ProcAddress) -> None:
        """Register a host agent that must be told when this host ends."""
        self._watched_by[watcher.uid] = watcher
        self._node.send(watcher, ProcUp(self._node.address, os.getpid()))

    def is_up(self, up: ProcUp) -> None:
        """Handle the introduction of a process, which may be a host that we watch."""
        uid = up.proc.uid
        if uid in self._watched:
            self._node.failure_detector.unexpect(uid)
            self._node.failure_detector.watch(up.proc, up.pid, lambda: self._ended(uid))

    def _ended(self, uid: Uid) -> None:
        self._node.peer_down.report(ProcDown(uid, "the host agent's process ended"))

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self._watched_by.pop(uid, None)
        for watchers in self._watched.values():
            watchers.pop(uid, None)
        for watcher in self._watched.pop(uid, {}).values():
            self._node.send(watcher, down)

    def say_goodbye(self) -> None:
        """Notify watchers that this host agent was asked to end, so that its end is no failure."""
        for watcher in self._watched_by.values():
            self._node.send(watcher, ProcDown(self._node.uid, "it was shut down", expected=True))
