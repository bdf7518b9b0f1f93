"""The author's end of a push to one host: it takes messages and returns messages, without I/O.

The author remembers what each host has, so the usual edit is one round trip: it sends the changes,
with the content that the host lacks. A host in another state says so, and gets the whole manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.content.disk import Content
from monarch_sync.errors import PushRefused
from monarch_sync.host_report import HostReport
from monarch_sync.messages import (
    Blob,
    Committed,
    Message,
    Need,
    Refused,
    Staged,
    StageRequest,
    Supply,
)
from monarch_sync.scanning.contents import Contents
from monarch_sync.tree.diff import find_moved_folders
from monarch_sync.tree.entry import Entry, Row, from_wire, to_wire
from monarch_sync.tree.large_files import MIN_BYTES
from monarch_sync.tree.manifest import Manifest, encode_pairs, encode_paths
from monarch_sync.workspace import Workspace

_MAX_ROUNDS = 4
_MAX_HELD = 200_000  # contents of a host's store that are remembered
MAX_UNASKED_BYTES = 64 << 20
_MAX_EDITED_BYTES = 64 << 10

_T = TypeVar("_T")


class PushMessage(NamedTuple):
    """A message to send, with the contents that are sent beside it."""

    message: Message
    blobs: Sequence[Content]


Outgoing = PushMessage  # its former name, which the package still has


class HostView:
    """What the author knows of one host from its answers.

    ``is_near``: bytes reach it at the speed of memory, as on one machine, so they are not
    compressed. ``is_empty``: it said that nothing was pushed to it yet, so it lacks all contents.
    """

    def __init__(self, *, is_near: bool = False, is_empty: bool = False) -> None:
        self.generation = 0
        #: Its state; None if that is not known.
        self.manifest: Manifest | None = None
        self.is_near = is_near
        self.is_empty = is_empty
        #: Contents of its earlier states, which its store should still have.
        self.held: set[bytes] = set()
        #: The part of its first state that instalments brought before the push.
        self.ahead: Manifest | None = None
        #: The size of these instalments.
        self.bytes_ahead = 0


class _Change(NamedTuple):
    """The changes from a host's state to the new state. If instalments were sent, they are the
    changes from the entries in these, and ``ahead`` is the digest of those entries.

    ``contents``: digests of contents of changed files that may be sent before the host asks for
    them. ``unsure``: the part of ``contents`` that the host may have at another path. ``replaced``:
    digests of contents that a file had in the old state and no file has in the new.
    """

    base: bytes
    entries: list[Entry]
    rows: list[Row]
    removed: list[bytes]
    contents: frozenset[bytes]
    moves: Sequence[tuple[bytes, bytes]] = ()
    unsure: frozenset[bytes] = frozenset()
    replaced: frozenset[bytes] = frozenset()
    ahead: bytes = b""


class Push:
    """Pushes one state to one host, until the host has staged it.

    ``contents`` is the author's memory of contents (`Scanner.contents`); without it every file is
    read again and sent whole.
    """

    def __init__(
        self,
        workspace: Workspace,
        manifest: Manifest,
        view: HostView,
        generation: int,
        contents: Contents | None = None,
    ) -> None:
        self._contents = contents or Contents(workspace)
        self._manifest = manifest
        self._view = view
        self.generation = generation
        #: The host's answer once it is ready for the commit.
        self.staged: Staged | None = None
        #: Bytes of content and of instalments that were sent to the host.
        self.bytes_sent = view.bytes_ahead
        #: The host's state and instalments, as `HostView` has them; None once the host denies them.
        self._base = view.manifest
        self._ahead = view.ahead if view.is_empty else None
        self._is_near = view.is_near
        self._is_empty = view.is_empty
        #: Whether the next stage may bring content that the host has not asked for.
        self._brings_content = False
        #: The number of replies so far.
        self._rounds = 0

    @property
    def base(self) -> Manifest | None:
        """The host's state before the push; None if it is not known."""
        return self._base

    def first(self, *, brings_content: bool = True) -> PushMessage:
        """Return the first message. Raises ``MovedUnderfoot`` if a file has changed since the scan.

        With ``brings_content`` False, no content is sent. That is for a host that goes back to an
        earlier state, as it has all content in its store.
        """
        self._brings_content = brings_content
        return self._stage()

    def large_in(self, out: PushMessage) -> list[Entry]:
        """Return the large files that a message sends, except those that replace a file of the
        host."""
        blobs = getattr(out.message, "blobs", ())
        large = {blob.digest for blob in blobs if blob.encoding == "raw" and blob.size >= MIN_BYTES}
        if not large:
            return []
        base: Container[str] = () if self._base is None else self._base
        return [e for e in self._manifest if e.digest in large and e.path not in base]

    def receive(self, reply: Message) -> PushMessage | Staged:
        """Take in a host's reply; return the next message, or ``Staged`` when the host is ready.

        Raises ``PushRefused`` if the host refuses, or its reply does not fit.
        """
        self._rounds += 1
        if isinstance(reply, Staged):
            self.staged = reply
            return reply
        if isinstance(reply, Need) and self._rounds < _MAX_ROUNDS:
            if reply.whole:
                self._base, self._ahead, self._brings_content = None, None, False
                return self._stage()
            return self._supply(frozenset(reply.digests))
        if isinstance(reply, Refused):
            raise PushRefused(reply.code, reply.reason, reply.path)
        raise PushRefused("confused", f"the host answered {type(reply).__name__}")

    def committed(self, reply: Message) -> list[str]:
        """Take in the answer to the commit; return the new names of files that the host kept.
        Raises ``PushRefused`` if the host did not commit."""
        if not isinstance(reply, Committed):
            code = reply.code if isinstance(reply, Refused) else "confused"
            reason = reply.reason if isinstance(reply, Refused) else type(reply).__name__
            raise PushRefused(code, reason)
        shared, view = self._contents.shared, self._view
        for key in [key for key, value in shared.items() if isinstance(value, PushMessage)]:
            del shared[key]  # Messages have contents, which take memory.
        view.ahead, view.bytes_ahead = None, 0
        view.held |= self._change().replaced
        if len(view.held) > _MAX_HELD:
            view.held.clear()
        view.generation, view.manifest, view.is_empty = self.generation, self._manifest, False
        return [from_wire(name) for name in reply.kept]

    def _stage(self) -> PushMessage:
        change = self._change()
        wanted: frozenset[bytes] = frozenset()
        base = self._base
        if self._brings_content and base is not None:
            wanted = change.contents - self._view.held
            if unsure := change.unsure & wanted:
                # Leave out contents that the host has at any path.
                unsure_key = (self.generation, change.base, unsure)
                wanted -= self._shared(unsure_key, lambda: frozenset(base.paths_of(unsure)))
        elif self._brings_content and self._is_empty:
            wanted = change.contents
        state = self._manifest.digest, change.base, change.ahead
        key = (self.generation, *state, wanted, self._is_near)
        return self._send(self._shared(key, lambda: self._make_stage(change, wanted)))

    def _supply(self, digests: frozenset[bytes]) -> PushMessage:
        def make() -> PushMessage:
            wanted = {entry.digest: entry for entry in self._manifest if entry.digest in digests}
            blobs = list(self._contents.packed(list(wanted.values()), is_near=self._is_near))
            message = Supply(self.generation, [blob for blob, _ in blobs])
            return PushMessage(message, [content for _, content in blobs])

        key = (self.generation, self._manifest.digest, digests, self._is_near)
        return self._send(self._shared(key, make))

    def _send(self, out: PushMessage) -> PushMessage:
        self.bytes_sent += sum(map(len, out.blobs))
        return out

    def _shared(self, key: tuple[Hashable, ...], make: Callable[[], _T]) -> _T:
        """Return the object that the pushes of one generation share under ``key``; the first push
        that needs it makes it with ``make``."""
        shared = self._contents.shared
        if key not in shared:
            for other in [other for other in shared if other[0] != self.generation]:
                del shared[other]  # of an earlier push
            shared[key] = make()
        value: _T = shared[key]
        return value

    def _change(self) -> _Change:
        base = self._base.digest if self._base is not None else b""
        ahead = self._ahead.digest if self._base is None and self._ahead is not None else b""
        key = (self.generation, self._manifest.digest, base, ahead)
        return self._shared(key, self._make_change)

    def _make_change(self) -> _Change:
        manifest, base = self._manifest, self._base
        if base is None:
            return self._make_first(manifest, self._ahead)
        moves = find_moved_folders(base, manifest)
        moved = base.replace(moves=moves) if moves else base
        changes = manifest.changes(moved)
        entries = [now for _, _, now in changes if now is not None]
        files = [(was, now) for _, was, now in changes if now is not None and now.is_file]
        replaced = [base.get(path) if was and moves else was for path, was, _ in changes]
        # An edit makes a new content. To look for it in the whole tree takes longer than to send a
        # few bytes in vain.
        unsure = [
            now
            for was, now in files
            if was is None or not was.is_file or now.size > _MAX_EDITED_BYTES
        ]
        return _Change(
            base=base.digest,
            entries=entries,
            rows=[entry.to_row() for entry in entries],
            removed=encode_paths(path for path, _, now in changes if now is None),
            moves=encode_pairs(moves),
            contents=frozenset(now.digest for _, now in files),
            unsure=frozenset(entry.digest for entry in unsure),
            replaced=frozenset(was.digest for was in replaced if was is not None and was.is_file),
        )

    def _make_first(self, manifest: Manifest, ahead: Manifest | None) -> _Change:
        removed: list[bytes] = []
        if ahead is None:
            entries, rows = list(manifest), manifest.rows()
        else:
            changes = manifest.changes(ahead)
            entries = [now for _, _, now in changes if now is not None]
            rows = [entry.to_row() for entry in entries]
            removed = encode_paths(path for path, _, now in changes if now is None)
        files = [entry for entry in entries if entry.is_file]
        # More than a round trip is worth is sent only to a host that asks for it.
        is_little = sum(entry.size for entry in files) <= MAX_UNASKED_BYTES
        return _Change(
            base=b"",
            entries=entries,
            rows=rows,
            removed=removed,
            contents=frozenset(entry.digest for entry in files if is_little),
            ahead=b"" if ahead is None else ahead.digest,
        )

    def _make_stage(self, change: _Change, wanted: frozenset[bytes]) -> PushMessage:
        blobs = self._pack(change.entries, wanted)
        message = StageRequest(
            generation=self.generation,
            author=self._contents.author,
            digest_name=self._manifest.digest_name,
            digest=self._manifest.digest,
            base=change.base,
            changed=change.rows,
            removed=change.removed,
            blobs=[blob for blob, _ in blobs],
            moves=list(change.moves),
            ahead=change.ahead,
        )
        return PushMessage(message, [content for _, content in blobs])

    def files(self) -> list[tuple[bytes, bytes]]:
        """Return the changes of files as (path, path of the new content); the second is empty for a
        deleted file.

        These are the files that the host listed in ``Staged.files``, and the files in folders that
        were only renamed. Empty before the host has staged.
        """
        if self.staged is None:
            return []
        files = list(self.staged.files)
        for raw_old, raw_new in self.staged.moves:
            old, new = from_wire(raw_old), from_wire(raw_new)
            for path in self._manifest.below(new):
                entry = self._manifest.get(path)
                if entry is not None and entry.is_file:
                    old_path = to_wire(old + path[len(new) :])
                    files += [(to_wire(path), old_path), (old_path, b"")]
        return files

    def tell(self, report: HostReport) -> None:
        """Copy the numbers of files, links, modes and folders from the host's ``Staged`` reply into
        ``report``. Without such a reply, count all files as unchanged.
        """
        staged = self.staged
        if staged is None:
            report.num_unchanged = self._manifest.num_files
            return
        report.num_written, report.num_moved = staged.num_written, staged.num_moved
        report.num_deleted, report.num_unchanged = staged.num_deleted, staged.num_unchanged
        report.num_links, report.num_modes = staged.num_links, staged.num_modes
        report.num_folders = staged.num_folders

    def _pack(
        self, entries: Iterable[Entry], wanted: frozenset[bytes]
    ) -> list[tuple[Blob, Content]]:
        """Return the blobs to send: every wanted content once, as a delta if that saves bytes."""
        blobs: list[tuple[Blob, Content]] = []
        whole: list[Entry] = []
        missing = set(wanted)
        for entry in entries:
            if not entry.is_file or entry.digest not in missing:
                continue
            missing.discard(entry.digest)
            delta = None
            # For a near host, making and reading a small delta takes longer than sending the file.
            if self._base is not None and (not self._is_near or entry.size >= LARGE_BYTES):
                old_entry = self._base.get(entry.path)
                if old_entry is not None and old_entry.is_file:
                    delta = self._contents.delta(old_entry.digest, entry)
            if delta is not None:
                blobs.append(delta)
            else:
                whole.append(entry)
        return [*blobs, *self._contents.packed(whole, is_near=self._is_near)]
