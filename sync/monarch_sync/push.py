"""The author's end of a push to one host. No I/O of its own: messages in, messages out.

The author remembers what each host has, so the usual edit is one round trip: what changed, with
the content that the host lacks. A host that has something else says so and gets the whole.
"""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch_sync.contents import Contents
from monarch_sync.disk import Content
from monarch_sync.entry import Entry, from_wire
from monarch_sync.errors import PushRefused
from monarch_sync.manifest import Manifest, encode_paths
from monarch_sync.messages import Blob, Committed, Message, Need, Refused, Stage, Staged
from monarch_sync.workspace import Workspace

__all__ = ["HostView", "Outgoing", "Push", "author_name"]

_MAX_ROUNDS = 4


class Outgoing(NamedTuple):
    """A message to send, with the blobs that go beside it."""

    message: Message
    blobs: Sequence[Content]


class HostView:
    """What the author knows of one host: the state it has, as far as we were told."""

    def __init__(self) -> None:
        self.generation = 0
        self.manifest: Manifest | None = None


class Push:
    """One state on its way to one host, up to the point where it is staged.

    ``contents`` is what the author remembers (`Scanner.contents`); without it every file is read
    again, and travels whole.
    """

    def __init__(
        self, workspace: Workspace, manifest: Manifest, view: HostView, generation: int,
        contents: Contents | None = None,
    ) -> None:  # fmt: skip
        self._contents = contents or Contents(workspace)
        self._manifest = manifest
        self._view = view
        self.generation = generation
        self.staged: Staged | None = None
        self.bytes_sent = 0
        self._base = view.manifest
        self._wanted: set[bytes] = set()
        self._wanted_whole: set[bytes] = set()
        self._rounds = 0

    def first(self, *, brings_content: bool = True) -> Outgoing:
        """What to send first. Raises ``MovedUnderfoot`` if a file is no longer as scanned.

        Without ``brings_content`` the host is trusted to have what it needs in its store, as it
        has when it goes back to a state that it had.
        """
        if self._base is not None and brings_content:
            paths = self._manifest.changed_paths(self._base)
            known = self._base.path_of
            files = (self._manifest.get(path) for path in paths)
            fresh = (e for e in files if e is not None and e.is_file)
            self._wanted = {e.digest for e in fresh if known(e.digest) is None}
        return self._stage()

    def receive(self, reply: Message) -> Outgoing | Staged:
        """The next message, or ``Staged`` when the host is ready. Raises ``PushRefused``."""
        self._rounds += 1
        if isinstance(reply, Staged):
            self.staged = reply
            return reply
        if isinstance(reply, Need) and self._rounds < _MAX_ROUNDS:
            if reply.whole:
                self._base = None
                self._wanted.clear()
            self._wanted.update(reply.digests)
            self._wanted_whole.update(reply.digests)
            return self._stage()
        if isinstance(reply, Refused):
            raise PushRefused(reply.code, reply.reason, reply.path)
        raise PushRefused("confused", f"the host answered {type(reply).__name__}")

    def committed(self, reply: Message) -> list[str]:
        """The host shows the new state; the names of files that it kept. Raises if it does not."""
        if not isinstance(reply, Committed):
            code = reply.code if isinstance(reply, Refused) else "confused"
            reason = reply.reason if isinstance(reply, Refused) else type(reply).__name__
            raise PushRefused(code, reason)
        self._view.generation = self.generation
        self._view.manifest = self._manifest
        return [from_wire(name) for name in reply.kept]

    def _stage(self) -> Outgoing:
        if self._base is None:
            base, changed, removed = b"", list(self._manifest), []
            rows = self._manifest.rows()
        else:
            base = self._base.digest
            paths = sorted(self._manifest.changed_paths(self._base))
            entries = {path: self._manifest.get(path) for path in paths}
            changed = [entry for entry in entries.values() if entry is not None]
            removed = encode_paths(path for path, entry in entries.items() if entry is None)
            rows = [entry.to_row() for entry in changed]
        blobs, contents = self._blobs(changed)
        message = Stage(
            self.generation, author_name(), self._manifest.digest_name, self._manifest.digest,
            base, rows, removed, blobs,
        )  # fmt: skip
        self.bytes_sent += sum(map(len, contents))
        return Outgoing(message, contents)

    def _blobs(self, changed: Iterable[Entry]) -> tuple[list[Blob], list[Content]]:
        """What goes along: every wanted content once, as a delta where that is known to do."""
        blobs: list[Blob] = []
        contents: list[Content] = []
        missing = set(self._wanted)
        for entry in changed:
            if not entry.is_file or entry.digest not in missing:
                continue
            missing.discard(entry.digest)
            before = self._base.get(entry.path) if self._base is not None else None
            delta = None
            if before is not None and before.is_file and entry.digest not in self._wanted_whole:
                delta = self._contents.delta(before.digest, entry)
            if before is not None and delta is not None:
                blobs.append(Blob(entry.digest, len(delta), "delta", before.digest))
                contents.append(delta)
            else:
                content = self._contents.whole(entry)
                blobs.append(Blob(entry.digest, len(content)))
                contents.append(content)
        return blobs, contents


@functools.cache
def author_name() -> str:
    """Who pushes, for the other side to show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
