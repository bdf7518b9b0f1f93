"""What came beside a message, as contents that are what they are said to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from monarch_sync.delta import decompress, unpatch
from monarch_sync.digest import LARGE_BYTES, digest_bytes
from monarch_sync.disk import Content
from monarch_sync.entry import Entry
from monarch_sync.errors import BadMessage
from monarch_sync.messages import Blob

__all__ = ["MAX_PACK_BYTES", "contents_of"]

MAX_PACK_BYTES = 64 << 20  # so much memory a message may make us take, at most


def contents_of(
    blob: Blob, data: Content, base: bytes | None, expected: Mapping[bytes, Sequence[Entry]]
) -> Iterator[tuple[bytes, Content]]:
    """The (digest, content) of each expected content in a blob. ``base``: of a patch. Raises
    ``BadMessage`` if one is not what it should be."""
    if blob.encoding in ("raw", "patch"):
        if blob.digest not in expected:
            return
        if blob.encoding == "patch":
            size = expected[blob.digest][0].size
            if size >= LARGE_BYTES:
                raise BadMessage("a large file came as a patch")
            data = unpatch(data, base or b"", size)
        yield _verified(blob.digest, data)
        return
    total = sum(size for _, size in blob.parts)
    if total > MAX_PACK_BYTES or any(size < 0 for _, size in blob.parts):
        raise BadMessage(f"a pack makes {total} bytes, more than {MAX_PACK_BYTES}")
    if blob.encoding == "frame":
        data = decompress(data, total)
    view = memoryview(data)
    if len(view) != total:
        raise BadMessage(f"a pack has {len(view)} bytes of {total}")
    at = 0
    for digest, size in blob.parts:
        if digest in expected:
            yield _verified(digest, view[at : at + size])
        at += size


def _verified(digest: bytes, content: Content) -> tuple[bytes, Content]:
    if digest_bytes(content) != digest:
        raise BadMessage("a content does not have the digest that it should")
    return digest, content
