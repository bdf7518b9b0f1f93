"""An author with one host, for tests that go the whole way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from monarch_sync import HostView, Outgoing, Push, Replica, Scanner, Workspace
from monarch_sync.messages import Commit, decode, encode


class Author:
    """Scans and pushes; ``content_sent`` are the bytes of content of the last push."""

    def __init__(self, folder: Path, replica: Replica) -> None:
        self.workspace = Workspace({folder: ""})
        self.scanner = Scanner(self.workspace)
        self.view = HostView()
        self.replica = replica
        self.num_messages = 0  # on the way to commits

    def push(self, touched: Iterable[Path] | None = None) -> Push:
        scanner = self.scanner
        scan = scanner.scan() if touched is None else scanner.rescan(touched)
        assert not scan.problems
        generation = self.replica.generation + 1
        push = Push(self.workspace, scan.manifest, self.view, generation, scanner.contents)
        step = push.first()
        while isinstance(step, Outgoing):
            self.num_messages += 1
            reply = self.replica.handle(decode(encode(step.message)), step.blobs)
            step = push.receive(decode(encode(reply)))
        push.committed(self.replica.handle(Commit(generation)))
        return push
