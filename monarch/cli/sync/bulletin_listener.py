"""Receives the hosts' bulletins during a watch, from one of the hosts, on a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from monarch.errors import MonarchError
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import Heard, Listen

_LISTEN_SECONDS = 20.0
_PATIENCE_SECONDS = 10.0  # beyond that, for the answer
_AGAIN_SECONDS = 2.0


class BulletinListener:
    """The bulletins of an allocation, from the first host that answers.

    ``hosts`` returns the present addresses. Bulletins that are in force at the start come first.
    ``heard`` is called, on another thread, whenever there is something to `take`.
    """

    def __init__(
        self, node: Node, hosts: Callable[[], list[ProcAddress]], heard: Callable[[], object]
    ) -> None:
        self._node = node
        self._hosts = hosts
        self._on_heard = heard
        self._bulletins: queue.SimpleQueue[Bulletin] = queue.SimpleQueue()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="monarch-hearing", daemon=True).start()

    def take(self) -> list[Bulletin]:
        """Return the bulletins that came since the last call, oldest first."""
        bulletins = []
        with contextlib.suppress(queue.Empty):
            while True:
                bulletins.append(self._bulletins.get_nowait())
        return bulletins

    def close(self) -> None:
        """Stop listening, without waiting for a request in progress."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                hosts = self._hosts()
            except MonarchError:
                hosts = []
            for host in hosts:
                self._listen_to(host)
                if self._over.is_set():
                    return
            self._over.wait(_AGAIN_SECONDS)

    def _listen_to(self, host: ProcAddress) -> None:
        """Receive bulletins from a host for as long as it answers."""
        heard = self._ask(host, 0, 0.0)
        while heard is not None and not self._over.is_set():
            for bulletin in heard.bulletins:
                self._bulletins.put(bulletin)
            if heard.bulletins:
                self._on_heard()
            heard = self._ask(host, heard.number, _LISTEN_SECONDS)

    def _ask(self, host: ProcAddress, number: int, seconds: float) -> Heard | None:
        node = self._node
        with contextlib.suppress(MonarchError):
            answer = node.ask(host, Listen(number, seconds))
            if answer.wait(seconds + _PATIENCE_SECONDS) and not answer.value.error:
                return answer.value.answer
        return None
