"""Another process, as this one sees it: on its way up, reachable, or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

from monarch.errors import MeshFailure
from monarch.net.transport import Connection, Frames
from monarch.wire.address import ProcAddress

__all__ = ["Peer"]


class Peer:
    """Keeps the order of what is sent to one process through all its states.

    Frames for a process that is still coming up are kept, and leave first when it is up.
    Frames for one that is gone are dropped: whoever waits for an answer asks ``failure``. A
    process may give way to a new one of its uid: from ``hold`` on, frames are for that one.
    """

    def __init__(self, address: ProcAddress) -> None:
        self.address = address
        self.failure: MeshFailure | None = None
        self._connection: Connection | None = None
        self._early: list[Frames | Callable[[], Frames]] = []
        self._held: Connection | None = None
        self._lock = threading.Lock()

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self.failure is None

    def send(self, frames: Frames) -> None:
        connection = self._connection
        if connection is not None:
            connection.send(frames)
            return
        with self._lock:
            if self._connection is not None:
                self._connection.send(frames)
            elif self.failure is None:
                self._early.append(frames)

    def send_when_up(self, make: Callable[[], Frames]) -> None:
        """Send frames that can be made only once it is known where the process listens."""
        with self._lock:
            if self._connection is None:
                if self.failure is None:
                    self._early.append(make)
                return
        self.send(make())

    def up(self, address: ProcAddress, connect: Callable[[], Connection], hello: Frames) -> None:
        """The process listens: open the connection, introduce ourselves, send what waited."""
        with self._lock:
            if self._connection is not None or self.failure is not None or self.is_held:
                return
            self.address = address
            connection = connect()
            connection.send(hello)
            self._connect(connection)

    def _connect(self, connection: Connection) -> None:
        """Send what waited. Under the lock."""
        for early in self._early:
            connection.send(early() if callable(early) else early)
        self._early.clear()
        self._connection = connection

    @property
    def is_held(self) -> bool:
        """Whether what is sent waits for another process of this uid."""
        return self._held is not None

    def hold(self) -> None:
        """Keep what is sent from here on for the process that will come in its place."""
        with self._lock:
            if self._held is None:
                self._held, self._connection = self._connection, None

    def send_past(self, frames: Frames) -> bool:
        """Send to the process that gives way, if there is one."""
        with self._lock:
            if self._held is not None:
                self._held.send(frames)
            return self._held is not None

    def release(self) -> None:
        """It stays after all: it gets what was kept."""
        with self._lock:
            connection, self._held = self._held, None
            if connection is not None:
                self._connect(connection)

    def again(self) -> None:
        """The process has ended, and another is coming up in its place."""
        with self._lock:
            old, self._connection = self._held or self._connection, None
            self._held = None
        if old is not None:
            old.close()

    def down(self, failure: MeshFailure) -> bool:
        """The process is gone; false if that was known."""
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = failure
            self._early.clear()
            connection, self._connection = self._held or self._connection, None
            self._held = None
        if connection is not None:
            connection.close()
        return True
