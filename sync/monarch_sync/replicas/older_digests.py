"""States of a replica that were noted with an earlier digest.

Files that a host holds stay claimed, so that a push still takes away those that the author has
deleted. Each file is read once: if it has the content that was noted, its entry gets the new digest
of that.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from monarch_sync.digest import BLOCK_BYTES, LARGE_BYTES, digest_bytes, digest_stream
from monarch_sync.disk import Disk
from monarch_sync.entry import Entry
from monarch_sync.manifest import Manifest
from monarch_sync.replicas.state_log import StateLog
from monarch_sync.replicas.store import ContentStore

_OLDER = ("current", "log", "history")


def renew(root: str, folder: Path, store: ContentStore, disk: Disk) -> None:
    """Note anew what a state folder has of an earlier kind, if it has; the contents that it has
    kept of earlier generations go, as their names are of no use any more."""
    older = [folder / name for name in _OLDER]
    if not any(path.exists() for path in older):
        return
    now, before = StateLog(folder, disk), StateLog(folder, disk, suffix="")
    is_whole = before.interrupted is None
    if not now.state.generation and before.state.generation and is_whole:
        manifest = _renewed_manifest(before.state.manifest, root)
        now.rewrite(before.state._replace(manifest=manifest))
    store.trim(0)
    for path in older:
        path.unlink(missing_ok=True)


def _renewed_manifest(manifest: Manifest, root: str) -> Manifest:
    """The same entries with our digests. A file that is not as it was noted has one that nothing
    has, and so counts as changed on the host."""
    return Manifest(
        _renewed(entry, f"{root}/{entry.path}") if entry.is_file else entry for entry in manifest
    )


def _renewed(entry: Entry, path: str) -> Entry:
    digest = digest_bytes(b"\0unknown\0" + entry.digest)
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb", buffering=0) as file:
            if _older_digest(file) == entry.digest:
                file.seek(0)
                digest, _ = digest_stream(file)
    return msgspec.structs.replace(entry, digest=digest)


def _older_digest(file: BinaryIO) -> bytes:
    """xxh3_128, of blocks where the content is large."""
    whole, blocks, size = xxhash.xxh3_128(), bytearray(), 0
    while block := file.read(BLOCK_BYTES):
        size += len(block)
        whole.update(block)
        blocks += xxhash.xxh3_128_digest(block)
    return xxhash.xxh3_128_digest(blocks) if size >= LARGE_BYTES else whole.digest()
