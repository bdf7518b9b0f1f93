"""Patches: a large file is changed in place, by writing only the blocks that an edit touched.

To write a gigabyte again for one changed block would take longer than the rest of the push. So a
file in which no bytes have shifted is patched. The new bytes are first saved in a file beside it,
with the old bytes at the same offsets. An interrupted commit is finished from that file; later the
file restores the old content (`ContentStore.find_patch`). A program that has the large file open
sees the change, as it would see any program's write. The digests of the blocks show whether the
result is right, without reading the whole file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from monarch_sync.content.delta import Piece
from monarch_sync.content.digest import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    ContentHasher,
    blocks_of,
    digest_of_blocks,
)

MAX_PATCH_BYTES = 64 << 20
_MAX_FILES = 64
_READ = 1 << 20

Write = tuple[int, bytes]


class Patch(msgspec.Struct, array_like=True, frozen=True):
    """A patch from one content of a file to another. ``base`` and ``base_size`` are the old
    content's digest and size, ``digest`` and ``size`` the new content's.

    ``writes`` are (offset, bytes) to write into the old content; ``undo`` are the writes that
    restore it.
    """

    base: bytes
    base_size: int
    digest: bytes
    size: int
    writes: list[Write]
    undo: list[Write]

    def encode(self) -> bytes:
        """Return the patch as bytes, which `read` reads from a file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, path: str) -> Patch | None:
        """Read the patch in a file; None if the file is no patch."""
        try:
            with open(path, "rb", buffering=0) as file:
                return msgspec.msgpack.decode(file.readall(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def back(self) -> Patch:
        """Return the patch from the new content to the old."""
        return Patch(
            base=self.digest,
            base_size=self.size,
            digest=self.base,
            size=self.base_size,
            writes=self.undo,
            undo=self.writes,
        )

    def then(self, other: Patch) -> Patch:
        """Return one patch that does the same as this patch and then ``other``."""
        return Patch(
            base=self.base,
            base_size=self.base_size,
            digest=other.digest,
            size=other.size,
            writes=self.writes + other.writes,
            undo=other.undo + self.undo,
        )


def writes_of(pieces: Sequence[Piece]) -> list[Write] | None:
    """Return a delta as writes into the old content. None if the delta moves bytes of the old
    content to another offset, or writes more than ``MAX_PATCH_BYTES``.
    """
    writes: list[Write] = []
    at = num_bytes = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            writes.append((at, piece))
            num_bytes += len(piece)
            at += len(piece)
        elif piece[0] != at:
            return None
        else:
            at += piece[1]
    return writes if num_bytes <= MAX_PATCH_BYTES else None


class Blocks:
    """Computes the digest that a large file has after a patch. For that, it remembers the digests
    of the blocks of a few files, so that only changed blocks are read.
    """

    def __init__(self) -> None:
        self._blocks_by_digest: OrderedDict[bytes, bytes] = OrderedDict()

    def _note(self, digest: bytes, blocks: bytes) -> None:
        self._blocks_by_digest[digest] = blocks
        self._blocks_by_digest.move_to_end(digest)
        if len(self._blocks_by_digest) > _MAX_FILES:
            self._blocks_by_digest.popitem(last=False)

    def patched(self, path: str, base: bytes, size: int, writes: Sequence[Write]) -> bytes | None:
        """Return the digest that the file would have after ``writes`` and with the length ``size``.
        ``base`` is the digest of its present content. None if the file cannot be read.
        """
        try:
            with open(path, "rb", buffering=0) as file:
                blocks = self._blocks_by_digest.get(base) or _read_blocks(file.fileno())
                patched = _patched(file.fileno(), blocks, size, writes)
        except OSError:
            return None
        digest = digest_of_blocks(patched)
        self._note(base, bytes(blocks))
        self._note(digest, bytes(patched))
        return digest

    def undo(self, path: str, size: int, writes: Sequence[Write]) -> list[Write] | None:
        """Return the writes that undo ``writes`` and the change of the file's length to ``size``.
        Call it before they happen, because it reads the bytes that they replace.

        None if the file would be cut by more than ``MAX_PATCH_BYTES``.
        """
        with open(path, "rb", buffering=0) as file:
            fd = file.fileno()
            old_size = os.fstat(fd).st_size
            if old_size - size > MAX_PATCH_BYTES:
                return None
            undo = [(at, os.pread(fd, len(data), at)) for at, data in writes]
            if old_size > size:
                undo.append((size, os.pread(fd, old_size - size, size)))
            return [(at, data) for at, data in undo if data]


def _read_blocks(fd: int) -> bytes:
    hasher = ContentHasher()
    at = 0
    while data := os.pread(fd, _READ, at):
        hasher.update(data)
        at += len(data)
    hasher.digest()
    return bytes(hasher.blocks)


def _patched(fd: int, old: bytes, size: int, writes: Sequence[Write]) -> bytearray:
    """Return the digests of a file's blocks, joined, as they would be after ``writes`` and with the
    length ``size``. ``old`` are the joined digests of the present blocks.
    """
    old_size = os.fstat(fd).st_size
    touched = {
        index
        for at, data in writes
        for index in range(at // BLOCK_BYTES, (at + len(data) - 1) // BLOCK_BYTES + 1)
    }
    if size != old_size:
        touched.update({min(size, old_size) // BLOCK_BYTES, max(size - 1, 0) // BLOCK_BYTES})
    num_blocks = -(-size // BLOCK_BYTES)
    num_bytes = num_blocks * DIGEST_BYTES
    blocks = bytearray(old[:num_bytes]).ljust(num_bytes, b"\0")
    new_blocks: dict[int, bytearray] = {}
    for index in touched:
        if index < num_blocks:
            start = index * BLOCK_BYTES
            block = bytearray(os.pread(fd, BLOCK_BYTES, start))
            new_blocks[index] = block.ljust(BLOCK_BYTES, b"\0")
    for at, data in writes:
        view = memoryview(data)
        while len(view):
            index, inside = divmod(at, BLOCK_BYTES)
            part = view[: BLOCK_BYTES - inside]
            if index in new_blocks:
                new_blocks[index][inside : inside + len(part)] = part
            at += len(part)
            view = view[len(part) :]
    for index, block in new_blocks.items():
        length = min(BLOCK_BYTES, size - index * BLOCK_BYTES)
        at = index * DIGEST_BYTES
        blocks[at : at + DIGEST_BYTES] = blocks_of(memoryview(block)[:length])
    return blocks
