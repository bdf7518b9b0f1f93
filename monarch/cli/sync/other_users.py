"""Reports pushes, rollbacks, runs and watches of others on the allocation of a watch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from monarch.cli.sync.bulletin_listener import BulletinListener
from monarch.cli.sync.output import Output
from monarch.cli.sync.pusher import Pusher
from monarch.errors import MonarchError
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.host_link import who_am_i
from monarch.wire.bulletin import Bulletin
from monarch_sync import SyncError
from monarch_sync.words import printable


class OtherUsers:
    """Pushes, rollbacks, runs and watches of others on the allocation.

    ``wake`` is called, on another thread, whenever there is something to `tell`.
    """

    def __init__(self, output: Output, wake: Callable[[], object], *, tells_runs: bool) -> None:
        self._output = output
        self._wake = wake
        self._tells_runs = tells_runs
        self._listener: BulletinListener | None = None
        self._pusher: Pusher | None = None
        #: The generation of our own last push; 0 if that was refused.
        self.came_to = 0
        #: Whether the hosts have another command's push, or a rollback, since.
        self.is_theirs = False

    def listen(self, pusher: Pusher) -> None:
        """Listen to the current allocation, and announce this watch to its other users."""
        self.close()
        self._pusher = pusher
        self._listener = BulletinListener(
            client().node, lambda: list(pusher.addresses().values()), self._wake
        )
        pusher.post(_about_us("watching", who_am_i()))

    def close(self) -> None:
        listener, self._listener = self._listener, None
        pusher, self._pusher = self._pusher, None
        if listener is not None:
            listener.close()
        if pusher is not None:
            with contextlib.suppress(MonarchError, SyncError):
                pusher.post(_about_us("left"))

    def answer(self, choice: str) -> None:
        """Answer the question of a run that holds, with one of the choices that it offers."""
        if self._pusher is not None:
            about = f"answer {client().node.uid}"
            with contextlib.suppress(MonarchError, SyncError):
                self._pusher.post(Bulletin(about, "answer", choice, stands=True))

    def pushed(self, generation: int) -> None:
        """Report who made the generations between our last push and ``generation``, our new one.

        Without it, their missing numbers would look like lost pushes.
        """
        last, self.came_to, self.is_theirs = self.came_to, generation, False
        if self._pusher is None or not 0 < last < generation - 1:
            return
        with contextlib.suppress(MonarchError, SyncError):
            text = f"in between there was {self._pusher.made_by_others(last, generation)}"
            self._output.note("others", text, after=last, before=generation)

    def tell(self) -> None:
        """Report all bulletins since the last call."""
        newest = 0  # of the generations that others have made
        own_uid = client().node.uid
        for bulletin in self._listener.take() if self._listener is not None else ():
            if bulletin.kind == "committed" and bulletin.data.get("sender") != own_uid:
                newest = max(newest, bulletin.generation)
            elif bulletin.kind == "watching" and bulletin.key != f"watch {own_uid}":
                watcher = printable(bulletin.text)
                text = f"watched by {watcher}, too: what either of you saves is pushed"
                self._output.note("watching", text, by=bulletin.text)
            data = {"about": bulletin.key, "generation": bulletin.generation, **bulletin.data}
            if bulletin.key.startswith("run ") and not self._tells_runs:
                continue
            if bulletin.kind == "held":
                self._output.alarm("held", bulletin.text, **data)
            elif bulletin.key.startswith("run ") and bulletin.text:
                self._output.note(bulletin.kind, bulletin.text, **data)
        self._tell_made(newest)

    def _tell_made(self, newest: int) -> None:
        """Report the generations of others after the last reported one, up to ``newest``.

        Generations of others that came before a push of ours were reported together with that push.
        """
        last = self.came_to
        if self._pusher is None or not 0 < last < newest:
            return
        self.came_to, self.is_theirs = newest, True
        with contextlib.suppress(MonarchError, SyncError):
            text = self._pusher.made_by_others(last, newest + 1)
            text = f"{text}; your next save is pushed over it"
            self._output.note("others", text, after=last, before=newest + 1)


def _about_us(kind: str, text: str = "") -> Bulletin:
    return Bulletin(f"watch {client().node.uid}", kind, text, stands=bool(text))
