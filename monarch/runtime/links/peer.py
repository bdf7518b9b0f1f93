"""Another process, as this one sees it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable

from monarch.errors import MeshFailure
from monarch.net.transport import Connection, Frames
from monarch.wire.address import ProcAddress


class PeerState(enum.Enum):
    """The states of a peer: see ``Peer``."""

    COMING = "coming up"
    UP = "up"
    HELD = "gives way"
    DOWN = "down"


_NEXT = {
    PeerState.COMING: {PeerState.UP, PeerState.COMING, PeerState.DOWN},
    PeerState.UP: {PeerState.HELD, PeerState.COMING, PeerState.DOWN},
    PeerState.HELD: {PeerState.UP, PeerState.COMING, PeerState.DOWN},
    PeerState.DOWN: set[PeerState](),
}


class Peer:
    """Keeps the order of messages to one process through all its states.

    ======== ================= ======= ================== =======
    event    coming            up      held               down
    ======== ================= ======= ================== =======
    send     kept              sent    kept               dropped
    up       up: kept are sent stays   stays              stays
    hold     stays             held    stays              stays
    release  stays             stays   up: kept are sent  stays
    again    stays             coming  coming, with kept  stays
    down     down, kept go     down    down, kept go      stays
    ======== ================= ======= ================== =======

    ``held``: the process may be replaced by a new one of its uid. Frames are kept for the new
    process; the connection to the old one stays open, for ``send_past``, until ``again`` or
    ``release``. A peer that is down stays down, and ``failure`` says why; a later process of its
    uid gets a new peer.
    """

    def __init__(self, address: ProcAddress) -> None:
        self.address = address
        #: Why it is down; None as long as it is not.
        self.failure: MeshFailure | None = None
        self.state = PeerState.COMING
        self._connection: Connection | None = None  # while up
        self._old: Connection | None = None  # while held
        #: The frames that wait, and functions that make such frames.
        self._kept: list[Frames | Callable[[], Frames]] = []
        self._lock = threading.Lock()

    @property
    def is_up(self) -> bool:
        return self.state is PeerState.UP

    def send(self, frames: Frames) -> None:
        connection = self._connection
        if connection is not None:
            connection.send(frames)
            return
        with self._lock:
            if self._connection is not None:
                self._connection.send(frames)
            elif self.state is not PeerState.DOWN:
                self._kept.append(frames)

    def send_when_up(self, make: Callable[[], Frames]) -> None:
        """Send frames whose content depends on the process's address. ``make`` is called when the
        address is known.
        """
        with self._lock:
            if self._connection is None:
                if self.state is not PeerState.DOWN:
                    self._kept.append(make)
                return
        self.send(make())

    def up(self, address: ProcAddress, connect: Callable[[], Connection], hello: Frames) -> None:
        """Note that the process listens: connect, introduce ourselves, and send the kept frames."""
        with self._lock:
            if self.state is not PeerState.COMING:
                return
            self.address = address
            connection = connect()
            connection.send(hello)
            self._send_kept(connection)

    def _send_kept(self, connection: Connection) -> None:
        """Send the kept frames through a connection. Call it under the lock."""
        for frames in self._kept:
            connection.send(frames() if callable(frames) else frames)
        self._kept.clear()
        self._enter(PeerState.UP, connection)

    def _enter(self, state: PeerState, connection: Connection | None = None) -> None:
        """Enter a state. Call it under the lock."""
        assert state in _NEXT[self.state], f"a peer that is {self.state.value} was {state.value}"
        self.state, self._connection = state, connection

    def hold(self) -> None:
        """Keep later frames for the process that will replace this one."""
        with self._lock:
            if self.state is PeerState.UP:
                self._old = self._connection
                self._enter(PeerState.HELD)

    def send_past(self, frames: Frames) -> bool:
        """Send frames to the old process, which may be replaced, although other frames are kept.
        Return whether there is a connection to it; if not, nothing is sent.
        """
        with self._lock:
            if self._old is not None:
                self._old.send(frames)
            return self._old is not None

    def release(self) -> None:
        """Note that the process stays after all, and send it the kept frames."""
        with self._lock:
            connection, self._old = self._old, None
            if connection is not None:
                self._send_kept(connection)

    def again(self) -> None:
        """Note that the process has ended and its replacement is starting."""
        with self._lock:
            if self.state is PeerState.DOWN:
                return
            connection = self._close()
            self._enter(PeerState.COMING)
        if connection is not None:
            connection.close()

    def _close(self) -> Connection | None:
        """Forget and return the connection. Call it under the lock."""
        connection, self._old = self._old or self._connection, None
        return connection

    def down(self, failure: MeshFailure) -> bool:
        """Note that the process is gone, and why; return false if that was noted before."""
        with self._lock:
            if self.state is PeerState.DOWN:
                return False
            self.failure = failure
            self._kept.clear()
            connection = self._close()
            self._enter(PeerState.DOWN)
        if connection is not None:
            connection.close()
        return True
