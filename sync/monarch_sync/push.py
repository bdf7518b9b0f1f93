"""The author's end of a push to one host. No I/O of its own: messages in, messages out.

The author remembers what each host has, so the usual edit is one round trip: what changed, with
the content that the host lacks. A host that has something else says so and gets the whole.
"""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from monarch_sync.contents import Contents
from monarch_sync.disk import Content
from monarch_sync.entry import Entry, from_wire
from monarch_sync.errors import PushRefused
from monarch_sync.manifest import Manifest, encode_paths
from monarch_sync.messages import Blob, Committed, Message, Need, Refused, Stage, Staged, Supply
from monarch_sync.workspace import Workspace

__all__ = ["HostView", "Outgoing", "Push", "author_name"]

_MAX_ROUNDS = 4


class Outgoing(NamedTuple):
    """A message to send, with the blobs that go beside it."""

    message: Message
    blobs: Sequence[Content]


class HostView:
    """What the author knows of one host: the state it has, as far as we were told. ``is_near``:
    bytes reach it at the speed of memory, as on one machine, so they are not compressed."""

    def __init__(self, *, is_near: bool = False) -> None:
        self.generation = 0
        self.manifest: Manifest | None = None
        self.is_near = is_near


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
        self._is_near = view.is_near
        self._wanted: Collection[bytes] = ()
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
                self._wanted = set(reply.digests)
                return self._stage()
            return self._supply(frozenset(reply.digests))
        if isinstance(reply, Refused):
            raise PushRefused(reply.code, reply.reason, reply.path)
        raise PushRefused("confused", f"the host answered {type(reply).__name__}")

    def committed(self, reply: Message) -> list[str]:
        """The host shows the new state; the names of files that it kept. Raises if it does not."""
        if not isinstance(reply, Committed):
            code = reply.code if isinstance(reply, Refused) else "confused"
            reason = reply.reason if isinstance(reply, Refused) else type(reply).__name__
            raise PushRefused(code, reason)
        self._contents.shared.clear()
        self._view.generation = self.generation
        self._view.manifest = self._manifest
        return [from_wire(name) for name in reply.kept]

    def _stage(self) -> Outgoing:
        base = self._base.digest if self._base is not None else b""
        key = (self.generation, base, self._manifest.digest, bool(self._wanted), self._is_near)
        return self._send_shared(key, self._make_stage)

    def _supply(self, digests: frozenset[bytes]) -> Outgoing:
        key = (self.generation, self._manifest.digest, digests, self._is_near)
        return self._send_shared(key, lambda: self._make_supply(digests))

    def _send_shared(self, key: tuple[Hashable, ...], make: Callable[[], Outgoing]) -> Outgoing:
        """What was made for another host that needs the same, or made now."""
        shared = self._contents.shared
        if key not in shared:
            for other in [other for other in shared if other[0] != self.generation]:
                del shared[other]  # of a push that came to nothing
            shared[key] = make()
        out: Outgoing = shared[key]
        self.bytes_sent += sum(map(len, out.blobs))
        return out

    def _make_stage(self) -> Outgoing:
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
        return Outgoing(message, contents)

    def _make_supply(self, digests: frozenset[bytes]) -> Outgoing:
        wanted: dict[bytes, Entry] = {}
        for entry in self._manifest:
            if entry.digest in digests:
                wanted[entry.digest] = entry
        made = list(self._contents.packed(list(wanted.values()), is_near=self._is_near))
        return Outgoing(
            Supply(self.generation, [blob for blob, _ in made]), [content for _, content in made]
        )

    def _blobs(self, changed: Iterable[Entry]) -> tuple[list[Blob], list[Content]]:
        """What goes along: every wanted content once, as a delta where that is known to do."""
        made: list[tuple[Blob, Content]] = []
        whole: list[Entry] = []
        missing = set(self._wanted)
        for entry in changed:
            if not entry.is_file or entry.digest not in missing:
                continue
            missing.discard(entry.digest)
            before = self._base.get(entry.path) if self._base is not None else None
            delta = None
            if before is not None and before.is_file:
                delta = self._contents.delta(before.digest, entry)
            if delta is not None:
                made.append(delta)
            else:
                whole.append(entry)
        made += self._contents.packed(whole, is_near=self._is_near)
        return [blob for blob, _ in made], [content for _, content in made]


@functools.cache
def author_name() -> str:
    """Who pushes, for the other side to show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
