"""Reports to a watch what others do with its allocation, as it happens."""

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
        hearing, self._listener = self._listener, None
        pusher, self._pusher = self._pusher, None
        if hearing is not None:
            hearing.close()
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
                told = Bulletin(f"answer {node.uid}", "answer", choice, stands=True)
                post(node, _hosts_of(pusher), told)

    def pushed(self, generation: int) -> None:
        """Report who has made the generations before our own push of this one.

        Otherwise numbers that are missing in our own lines look like lost pushes.
        """
        before, self.came_to, self.is_theirs = self.came_to, generation, False
        if self._pusher is None or not 0 < before < generation - 1:
            return
        with contextlib.suppress(MonarchError, SyncError):
            text = self._pusher.made_by_others(before, generation)
            text = f"in between there was {text}"
            self._output.note("others", text, after=before, before=generation)

    def tell(self) -> None:
        """Report all bulletins since the last call."""
        brought: dict[int, str] = {}
        ours = client().node.uid
        for told in self._listener.take() if self._listener is not None else ():
            if told.kind == "committed" and told.data.get("sender") != ours:
                brought[told.generation] = str(told.data.get("author", ""))
            elif told.kind == "watching" and told.key != f"watch {ours}":
                self._output.note(
                    "watching",
                    f"watched by {printable(told.text)}, too: what either of you saves is pushed",
                    by=told.text,
                )
            data = {"about": told.key, "generation": told.generation, **told.data}
            if told.key.startswith("run ") and not self._tells_runs:
                continue
            if told.kind == "held":
                self._output.alarm("held", told.text, **data)
            elif told.key.startswith("run ") and told.text:
                self._output.note(told.kind, told.text, **data)
        self._tell_brought(brought)

    def _tell_brought(self, brought: dict[int, str]) -> None:
        """Report generations of others; those before our last push were reported with it."""
        before, now = self.came_to, max(brought, default=0)
        if self._pusher is None or not 0 < before < now:
            return
        self.came_to, self.is_theirs = now, True
        with contextlib.suppress(MonarchError, SyncError):
            text = self._pusher.made_by_others(before, now + 1)
            self._output.note(
                "others", f"{text}; your next save is pushed over it", after=before, before=now + 1
            )


def _hosts_of(pusher: Pusher) -> list[ProcAddress]:
    return list(pusher.addresses().values())
