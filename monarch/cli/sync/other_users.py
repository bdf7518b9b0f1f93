"""Reports pushes, rollbacks, runs and watches of others on the allocation of a watch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from monarch.cli.sync.bulletin_listener import BulletinListener
from monarch.cli.sync.output import Output
from monarch.cli.sync.pusher import Pusher
from monarch.errors import MonarchError
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.bulletins import post
from monarch.runtime.hosts.host_link import who_am_i
from monarch.wire.address import ProcAddress
from monarch.wire.bulletin import Bulletin
from monarch_sync import SyncError
from monarch_sync.words import printable


class OtherUsers:
    """Pushes, rollbacks, runs and watches of others on the allocation.

    ``wake`` is called, on another thread, whenever there is something to `tell`. ``came_to`` is the
    generation of our own last push; 0 if that was refused. ``is_theirs``: the hosts have another
    command's push, or a rollback, since.
    """

    def __init__(self, output: Output, wake: Callable[[], object], *, tells_runs: bool) -> None:
        self._output = output
        self._wake = wake
        self._tells_runs = tells_runs
        self._listener: BulletinListener | None = None
        self._pusher: Pusher | None = None
        self.came_to = 0
        self.is_theirs = False

    def listen(self, pusher: Pusher) -> None:
        """Listen to the current allocation, and announce this watch to its other users."""
        self.close()
        self._pusher = pusher
        self._listener = BulletinListener(client().node, lambda: _hosts_of(pusher), self._wake)
        self._post_about_us(pusher, "watching", who_am_i())

    def close(self) -> None:
        listener, self._listener = self._listener, None
        pusher, self._pusher = self._pusher, None
        if listener is not None:
            listener.close()
        if pusher is not None:
            with contextlib.suppress(MonarchError, SyncError):
                self._post_about_us(pusher, "left")

    def _post_about_us(self, pusher: Pusher, kind: str, text: str = "") -> None:
        node = client().node
        about_us = Bulletin(f"watch {node.uid}", kind, text, stands=bool(text))
        post(node, _hosts_of(pusher), about_us)

    def answer(self, choice: str) -> None:
        """Answer the question of a run that holds."""
        pusher = self._pusher
        if pusher is not None:
            with contextlib.suppress(MonarchError, SyncError):
                node = client().node
                bulletin = Bulletin(f"answer {node.uid}", "answer", choice, stands=True)
                post(node, _hosts_of(pusher), bulletin)

    def pushed(self, generation: int) -> None:
        """Report who has made the generations before our own push of this one.

        Otherwise numbers that are missing in our own lines look like lost pushes.
        """
        last, self.came_to, self.is_theirs = self.came_to, generation, False
        if self._pusher is None or not 0 < last < generation - 1:
            return
        with contextlib.suppress(MonarchError, SyncError):
            text = self._pusher.made_by_others(last, generation)
            text = f"in between there was {text}"
            self._output.note("others", text, after=last, before=generation)

    def tell(self) -> None:
        """Report all bulletins since the last call."""
        authors: dict[int, str] = {}
        own_uid = client().node.uid
        for bulletin in self._listener.take() if self._listener is not None else ():
            if bulletin.kind == "committed" and bulletin.data.get("sender") != own_uid:
                authors[bulletin.generation] = str(bulletin.data.get("author", ""))
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
        self._tell_brought(authors)

    def _tell_brought(self, authors: dict[int, str]) -> None:
        """Report generations of others; those before our last push were reported with it."""
        last, newest = self.came_to, max(authors, default=0)
        if self._pusher is None or not 0 < last < newest:
            return
        self.came_to, self.is_theirs = newest, True
        with contextlib.suppress(MonarchError, SyncError):
            text = self._pusher.made_by_others(last, newest + 1)
            self._output.note(
                "others", f"{text}; your next save is pushed over it", after=last, before=newest + 1
            )


def _hosts_of(pusher: Pusher) -> list[ProcAddress]:
    return list(pusher.addresses().values())
