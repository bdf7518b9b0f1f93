"""Contents: the content that the author sends, and a memory of what it has sent.

Small contents are kept in memory, the least recently used dropped first; of a large content only
its chunks are kept. So a push sends the content that was scanned, even if the file has changed
since; a file is read once for many hosts; and an edit is sent as the difference to what the host
has.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from monarch_sync.content.chunks import Chunks
from monarch_sync.content.delta import Piece, between_chunks, compress, encode, patch
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.content.disk import Content
from monarch_sync.errors import MovedUnderfoot
from monarch_sync.messages import Blob
from monarch_sync.scanning.reading import open_file, read_exactly, read_file
from monarch_sync.tree.entry import Entry
from monarch_sync.workspace import Workspace

DEFAULT_MAX_BYTES = 128 << 20
_MAX_DELTAS = 256
_MAX_DELTA_BYTES = 128 << 10  # a longer one is not remembered
_MAX_LARGE = 64  # large files whose chunks are remembered
_MAX_SHARE = 0.5  # a delta that is larger than this share of the content is not sent
_NUM_SAMPLES = 16
_MAX_PATCHED_BYTES = LARGE_BYTES
_PACK_BYTES = 4 << 20
_MAX_PACKED_BYTES = 1 << 20  # a larger content travels by itself
_MIN_FRAME_BYTES = 256  # less is not worth compressing


class Contents:
    """The contents of one workspace, as the author remembers or reads them. Small contents take at
    most ``max_bytes`` of memory. Not for several threads at once."""

    def __init__(self, workspace: Workspace, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.author = author_name()
        self._workspace = workspace
        self._max_bytes = max_bytes
        #: The bytes of all small contents that are remembered.
        self._num_bytes = 0
        #: Small contents, and the chunks of large ones, by digest; the oldest first.
        self._small: OrderedDict[bytes, bytes] = OrderedDict()
        self._large: OrderedDict[bytes, Chunks] = OrderedDict()
        #: Is called for a content that no file here has: hosts may have files that the author
        #: cannot read.
        self.elsewhere: Callable[[Entry], bytes | None] = lambda entry: None
        #: Deltas by (old digest, new digest); None for a delta that saves little.
        self._deltas: OrderedDict[tuple[bytes, bytes], tuple[Blob, bytes] | None] = OrderedDict()
        #: What the push under way sends to several hosts; `Push` makes the keys.
        self.shared: dict[tuple[Hashable, ...], Any] = {}

    def remember(self, digest: bytes, content: bytes) -> None:
        """Keep a small content, as long as there is room."""
        if digest in self._small:
            self._small.move_to_end(digest)
            return
        self._small[digest] = content
        self._num_bytes += len(content)
        while self._num_bytes > self._max_bytes and self._small:
            _, oldest = self._small.popitem(last=False)
            self._num_bytes -= len(oldest)

    def remember_chunks(self, digest: bytes, chunks: Chunks) -> None:
        """Keep the chunks of a large content, and drop the oldest beyond ``_MAX_LARGE``
        contents."""
        self._large[digest] = chunks
        if len(self._large) > _MAX_LARGE:
            self._large.popitem(last=False)

    def chunks(self, digest: bytes) -> Chunks | None:
        """Return the chunks of a large content; None if they are not remembered."""
        return self._large.get(digest)

    def whole(self, entry: Entry) -> Content:
        """Return a file's content. Raises `MovedUnderfoot` if no file has it any more."""
        if (content := self._small.get(entry.digest)) is not None:
            self._small.move_to_end(entry.digest)
            return content
        for local in self._workspace.locate(entry.path):
            try:
                content_there = read_file(local)
            except OSError:
                continue
            if digest_bytes(content_there) == entry.digest:
                if isinstance(content_there, bytes):
                    self.remember(entry.digest, content_there)
                return content_there
        if (lent := self.elsewhere(entry)) is not None:
            if len(lent) < LARGE_BYTES:
                self.remember(entry.digest, lent)
            return lent
        raise MovedUnderfoot(entry.path)

    def packed(self, entries: Sequence[Entry], *, is_near: bool) -> Iterable[tuple[Blob, Content]]:
        """Yield many contents as few blobs. They are not compressed for a near host, to which
        moving bytes costs nothing. Raises `MovedUnderfoot`."""
        pack: list[Content] = []
        parts: list[tuple[bytes, int]] = []
        size = 0
        for entry in entries:
            content = self.whole(entry)
            if len(content) > _MAX_PACKED_BYTES:
                yield Blob(entry.digest, len(content)), content
                continue
            pack.append(content)
            parts.append((entry.digest, len(content)))
            size += len(content)
            if size > _PACK_BYTES:
                yield _pack(parts, pack, size, is_near=is_near)
                pack, parts, size = [], [], 0
        if pack:
            yield _pack(parts, pack, size, is_near=is_near)

    def delta(self, base: bytes, entry: Entry) -> tuple[Blob, bytes] | None:
        """Return the delta from the content `base` to a file's content; None if that saves little.

        A file that changes while it is read gives a wrong delta: the host verifies the result, and
        asks for the whole content.
        """
        key = (base, entry.digest)
        if key not in self._deltas:
            delta = self._make_delta(base, entry)
            if delta is not None and len(delta[1]) > entry.size * _MAX_SHARE:
                delta = None
            if delta is not None and len(delta[1]) > _MAX_DELTA_BYTES:
                return delta  # `shared` keeps it during the push.
            self._deltas[key] = delta
            if len(self._deltas) > _MAX_DELTAS:
                self._deltas.popitem(last=False)
        return self._deltas[key]

    def _make_delta(self, base: bytes, entry: Entry) -> tuple[Blob, bytes] | None:
        old, new = self._small.get(base), self._small.get(entry.digest)
        if old is not None and new is not None:
            if max(len(old), len(new)) >= _MAX_PATCHED_BYTES or not _is_like(old, new):
                return None
            frame = patch(old, new)
            return Blob(entry.digest, len(frame), "patch", base), frame
        pieces = self._pieces(base, entry)
        if pieces is None:
            return None
        encoded = encode(pieces)
        return Blob(entry.digest, len(encoded), "delta", base), encoded

    def _pieces(self, base: bytes, entry: Entry) -> list[Piece] | None:
        old, new = self._large.get(base), self._large.get(entry.digest)
        if old is None or new is None:
            return None
        for local in self._workspace.locate(entry.path):
            with contextlib.suppress(OSError):
                return _pieces_of(local, old, new)
        return None


def _pieces_of(path: str | os.PathLike[str], old: Chunks, new: Chunks) -> list[Piece]:
    fd = open_file(path)
    try:
        return between_chunks(old, new, lambda offset, size: read_exactly(fd, size, offset))
    finally:
        os.close(fd)


def _is_like(old: bytes, new: bytes) -> bool:
    """Return whether the new content seems to share lines with the old. A look at some lines costs
    less than a patch that turns out to be useless."""
    lines = new.split(b"\n")
    if len(lines) < _NUM_SAMPLES:
        return True
    old_lines = set(old.split(b"\n"))
    return any(line in old_lines for line in lines[:: len(lines) // _NUM_SAMPLES] if line)


def _pack(
    parts: list[tuple[bytes, int]], pack: list[Content], size: int, *, is_near: bool
) -> tuple[Blob, Content]:
    if not is_near and size >= _MIN_FRAME_BYTES:
        frame = compress(b"".join(pack))
        if len(frame) < size:
            return Blob(b"", len(frame), "frame", parts=parts), frame
    if len(parts) == 1:
        return Blob(parts[0][0], size), pack[0]
    return Blob(b"", size, "pack", parts=parts), b"".join(pack)


@functools.cache
def author_name() -> str:
    """Return the name of the user and the machine that push, for hosts to show."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
