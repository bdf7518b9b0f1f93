"""Delivers schedulers' warnings that hosts are about to end to the hosts' users."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from monarch.errors import MonarchError
from monarch.runtime.answers import Response
from monarch.runtime.hosts.end_notice import ENDING
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Heard, Listen

_log = logging.getLogger("monarch.host")
_LISTEN_SECONDS = 30.0
_AGAIN_SECONDS = 2.0


class HostWarning(NamedTuple):
    """A warning that ``host`` will end, and ``why``; ``seconds`` is the time left, if its scheduler
    says so.
    """

    host: str
    why: str
    seconds: float | None

    def __str__(self) -> str:
        when = "soon" if self.seconds is None else f"in {self.seconds:.0f} s"
        return f"{self.host} ends {when}: {self.why}"


class WarningSubscription:
    """Calls ``tell``, on its own thread, for each warning of these hosts until it is closed. A
    warning that is already in force is reported at once.
    """

    def __init__(
        self,
        node: Node,
        hosts: Iterable[ProcAddress],
        tell: Callable[[HostWarning], object],
    ) -> None:
        self._node = node
        self._tell = tell
        self._is_closed = False
        #: The warnings that were delivered, by host and number.
        self._delivered: set[tuple[Uid, int]] = set()
        self._warnings: queue.SimpleQueue[HostWarning | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-warnings", daemon=True)
        self._thread.start()
        for host in {host.uid: host for host in hosts}.values():
            self._listen(host, 0, 0.0)

    def close(self) -> None:
        """Stop calling ``tell``. Waits for a call in progress, except when that call itself
        closes.
        """
        self._is_closed = True
        self._warnings.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> WarningSubscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while (warning := self._warnings.get()) is not None and not self._is_closed:
            try:
                self._tell(warning)
            except Exception:
                _log.exception("what was to be done about %r failed", str(warning))

    def _listen(self, host: ProcAddress, number: int, seconds: float) -> None:
        node = self._node
        with contextlib.suppress(MonarchError):
            if self._is_closed:
                if number:  # Otherwise the host would wait for us before it ends.
                    node.order(host, Listen(number, 0.0))
                return
            answer = node.ask(host, Listen(number, seconds))
            answer.on_set(lambda: self._heard(host, answer.value))

    def _heard(self, host: ProcAddress, answer: Response[Heard]) -> None:
        if answer.error:
            # The agent has ended; another one may start in its place.
            self._node.loop.call_later(_AGAIN_SECONDS, lambda: self._listen(host, 0, 0.0))
            return
        for bulletin in answer.answer.bulletins:
            key = host.uid, bulletin.number
            if bulletin.kind == ENDING and key not in self._delivered:
                self._delivered.add(key)
                data = bulletin.data
                self._warnings.put(HostWarning(data["host"], data["why"], data["seconds"]))
        self._listen(host, answer.answer.number, _LISTEN_SECONDS)
