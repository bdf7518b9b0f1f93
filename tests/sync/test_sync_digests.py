"""Two contents are never taken for one, whoever made them up."""

from __future__ import annotations

import io
import os
from pathlib import Path

import xxhash

from monarch_sync import Replica, Workspace, sync_local
from monarch_sync.content.chunks import cut
from monarch_sync.content.digest import BLOCK_BYTES, LARGE_BYTES, blocks_of, digest_bytes
from tests.sync.trees import read_tree

# Of what xxh3 mixes content with: what stands beside one of these counts by its sum alone.
_SECRETS = bytes.fromhex("cb79e64e"), bytes.fromhex("825ad07d")


def twins(rate: bytes) -> bytes:
    """A Python file with a rate of four digits; for xxh3_128 they are all the same."""
    total = int.from_bytes(b"0001", "little") + int.from_bytes(b"zzzz", "little")
    rest = (total - int.from_bytes(rate, "little")).to_bytes(4, "little")
    text = bytearray(b"# coding: latin-1\nX='".ljust(2048))
    text[32:42] = _SECRETS[0] + rate + b"'\n"
    text[42:96] = b"RATE = int(X[-4:])#".ljust(53, b".") + b"#"
    text[96:105] = _SECRETS[1] + rest + b"\n"
    return bytes(text)


def test_contents_that_a_quick_digest_takes_for_one(tmp_path: Path) -> None:
    one, other = twins(b"0001"), twins(b"9999")
    assert one != other
    assert xxhash.xxh3_128_digest(one) == xxhash.xxh3_128_digest(other)
    source, root = tmp_path / "project", tmp_path / "host"
    source.mkdir()
    workspace, replica = Workspace(dirs={source: ""}), Replica(root)
    for edit in ({"task.py": one}, {"task.py": other}, {"task.py": one, "other.py": other}):
        for name, content in edit.items():
            (source / name).write_bytes(content)
        sync_local(workspace, replica)
        assert read_tree(root) == edit
    replica.close()


def test_a_small_content_is_not_taken_for_a_large_one_with_these_block_digests() -> None:
    large = bytes(LARGE_BYTES)
    assert digest_bytes(blocks_of(large)) != digest_bytes(large)


def test_a_block_that_changed_is_noticed_by_the_quick_look_too() -> None:
    before = bytearray(os.urandom(LARGE_BYTES) + b"the end")
    before[:BLOCK_BYTES] = twins(b"0001").ljust(BLOCK_BYTES)
    _, _, chunks = cut(io.BytesIO(before), None)
    after = bytearray(before)
    after[:BLOCK_BYTES] = twins(b"9999").ljust(BLOCK_BYTES)
    after[-1:] = b"!"
    digest, size, again = cut(io.BytesIO(after), chunks)
    assert (digest, size) == (digest_bytes(after), len(after))
    assert digest != digest_bytes(before)
    assert cut(io.BytesIO(after), again)[0] == digest
