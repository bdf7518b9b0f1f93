"""Two contents are never taken for one, whoever made them up; and what hosts noted before that."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest
import xxhash

from monarch_sync import Replica, Workspace, sync_local
from monarch_sync.chunks import cut
from monarch_sync.digest import BLOCK_BYTES, LARGE_BYTES, blocks_of, digest_bytes
from monarch_sync.entry import Row
from monarch_sync.frames import frame
from monarch_sync.messages import Committed
from monarch_sync.replicas.state_log import Journal
from tests.sync.trees import Tree, manifest_of, push_tree, read_tree

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


def older_digest(content: bytes) -> bytes:
    if len(content) < LARGE_BYTES:
        return xxhash.xxh3_128_digest(content)
    blocks = range(0, len(content), BLOCK_BYTES)
    return xxhash.xxh3_128_digest(
        b"".join(xxhash.xxh3_128_digest(content[at : at + BLOCK_BYTES]) for at in blocks)
    )


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


def older_row(path: str, content: bytes) -> Row:
    (row,) = [entry.to_row() for entry in manifest_of({path: content}) if entry.path == path]
    return (*row[:4], older_digest(content), *row[5:])


@pytest.mark.parametrize("where", ["current", "log"])
def test_what_a_host_noted_with_an_earlier_digest_stays_its_own(tmp_path: Path, where: str) -> None:
    large = bytes(LARGE_BYTES)
    tree: Tree = {"kept": b"1", "deleted": b"2", "edited on the host": b"3", "large": large}
    root = tmp_path / "host"
    made = Replica(root)
    push_tree(made, 7, tree)
    made.close()
    (root / "edited on the host").write_bytes(b"theirs")
    state = made.state_folder
    rows = [older_row(path, content) for path, content in tree.items() if content]  # type: ignore[arg-type]
    if where == "current":
        manifest = msgspec.msgpack.encode(("xxh3_128/64k", rows))
        (state / "current").write_bytes(msgspec.msgpack.encode((7, "me", manifest, "")))
    else:
        journal = msgspec.msgpack.encode(Journal(7, "me", rows, []))
        done = msgspec.msgpack.encode(("done", 7, []))
        (state / "log").write_bytes(frame(journal) + frame(done))
    for name in ("current.2", "log.2", "history.2"):
        (state / name).unlink(missing_ok=True)
    (state / "store" / older_digest(b"0").hex()).write_bytes(b"0")

    replica = Replica(root)
    assert replica.generation == 7
    assert replica.manifest.get("kept") == manifest_of(tree).get("kept")
    assert replica.manifest.get("large") == manifest_of(tree).get("large")
    assert not list((state / "store").iterdir())
    wanted: Tree = {"kept": b"1", "edited on the host": b"4", "large": large}
    assert isinstance(push_tree(replica, 8, wanted), Committed)
    there = read_tree(root)
    assert {path: there[path] for path in wanted} == wanted
    # What somebody changed on the host is kept beside.
    assert sorted(there[path] or b"" for path in there.keys() - wanted.keys()) == [b"theirs"]
    replica.close()
    assert not (state / where).exists()
