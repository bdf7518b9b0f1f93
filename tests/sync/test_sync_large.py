"""Large files: changed where they stand, put back, and never left half-way."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_sync import Manifest, Replica
from monarch_sync.content.digest import LARGE_BYTES, ContentHasher, digest_bytes
from monarch_sync.content.disk import AnyPath, Disk
from monarch_sync.messages import Commit, Committed, Need, Staged
from monarch_sync.push import Push
from monarch_sync.replicas.patch_file import Blocks, Patch
from monarch_sync.tree.entry import Entry, EntryKind
from tests.sync.author import Author
from tests.sync.trees import manifest_of, read_tree, stage_message

MIB = 1 << 20
OLD = random.Random(1).randbytes(LARGE_BYTES + 100_001)


@given(
    cuts=st.lists(st.integers(0, len(OLD)), max_size=6),
    size=st.sampled_from([0, 1, 65536, 65537, LARGE_BYTES - 1, LARGE_BYTES, len(OLD)]),
)
@settings(max_examples=30, deadline=None)
def test_a_content_that_comes_in_parts_has_the_same_digest(cuts: list[int], size: int) -> None:
    content = OLD[:size]
    hasher = ContentHasher()
    edges = [0, *sorted(cuts), len(content)]
    for one, other in itertools.pairwise(edges):
        hasher.update(content[one:other])
    assert hasher.digest() == digest_bytes(content)


def overwritten(old: bytes) -> bytes:
    return old[: 3 * MIB] + b"x" * 5000 + old[3 * MIB + 5000 :]


def appended(old: bytes) -> bytes:
    return old + b"more" * 20_000


def cut_short(old: bytes) -> bytes:
    return old[:-70_000]


def in_many_places(old: bytes) -> bytes:
    new = bytearray(old)
    for at in range(7, len(new), MIB):
        new[at : at + 10] = b"0123456789"
    return bytes(new)


IN_PLACE = [overwritten, appended, cut_short, in_many_places]


@pytest.mark.parametrize("edit", IN_PLACE)
def test_what_does_not_shift_is_changed_where_it_stands_and_back(
    folder: Path, replica: Replica, edit: Callable[[bytes], bytes]
) -> None:
    path, there = folder / "weights", replica.root / "weights"
    path.write_bytes(OLD)
    author = Author(folder, replica)
    author.push()
    first, inode = author.scanner.scan().manifest, there.stat().st_ino
    path.write_bytes(edit(OLD))
    assert author.push([path]).bytes_sent < 3 * MIB
    assert there.read_bytes() == edit(OLD)
    assert there.stat().st_ino == inode
    replica.settle()
    # The way back is on the host, as for small files.
    push = Push(author.workspace, first, author.view, replica.generation + 1)
    step = push.first(brings_content=False)
    assert isinstance(replica.handle(step.message, step.blobs), Staged)
    assert replica.handle(Commit(push.generation)) == Committed(push.generation, [])
    assert there.read_bytes() == OLD
    assert there.stat().st_ino == inode


def test_the_way_back_leads_over_many_edits(folder: Path, replica: Replica) -> None:
    path = folder / "weights"
    path.write_bytes(OLD)
    author = Author(folder, replica)
    author.push()
    first = author.scanner.scan().manifest
    content = OLD
    for edit in (appended, overwritten, cut_short, in_many_places):
        content = edit(content)
        path.write_bytes(content)
        author.push([path])
    assert (replica.root / "weights").read_bytes() == content
    push = Push(author.workspace, first, author.view, replica.generation + 1)
    step = push.first(brings_content=False)
    assert isinstance(replica.handle(step.message, step.blobs), Staged)
    assert isinstance(replica.handle(Commit(push.generation)), Committed)
    assert (replica.root / "weights").read_bytes() == OLD


@pytest.mark.parametrize("meddle", ["changed", "linked"])
def test_a_file_that_is_not_only_ours_is_not_changed_where_it_stands(
    folder: Path, replica: Replica, tmp_path: Path, meddle: str
) -> None:
    path, there = folder / "weights", replica.root / "weights"
    path.write_bytes(OLD)
    author = Author(folder, replica)
    author.push()
    if meddle == "linked":
        os.link(there, tmp_path / "snapshot")
    else:
        there.write_bytes(OLD[:-1] + b"!")
    path.write_bytes(overwritten(OLD))
    author.push([path])
    assert there.read_bytes() == overwritten(OLD)
    if meddle == "linked":
        assert (tmp_path / "snapshot").read_bytes() == OLD
    else:
        (kept,) = replica.root.glob("weights.host-*")
        assert kept.read_bytes() == OLD[:-1] + b"!"


class Stopped(BaseException):
    pass


class TearingDisk(Disk):
    """Stops at a step, and in the middle of a write into a file that stands there."""

    steps_left = -1

    def __getattribute__(self, name: str) -> object:
        if name in Disk.__dict__ and not name.startswith("_") and name != "overwrite":
            self.step()
        return super().__getattribute__(name)

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == -1:
            raise Stopped

    def overwrite(
        self, path: AnyPath, writes: Iterable[tuple[int, bytes]], size: int, mtime: int
    ) -> None:
        writes = list(writes)
        for some in range(len(writes) + 1):
            try:
                self.step()
            except Stopped:
                torn = [(at, data[: len(data) // 2]) for at, data in writes[some : some + 1]]
                is_late = some == len(writes)
                end = size if is_late else os.stat(path).st_size
                Disk.overwrite(self, path, [*writes[:some], *torn], end, mtime)
                raise
        Disk.overwrite(self, path, writes, size, mtime)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("edit", IN_PLACE[:3])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, edit: Callable[[bytes], bytes]
) -> None:
    new = edit(OLD)
    for step in range(40):
        folder, root = tmp_path / f"from{step}", tmp_path / f"to{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(OLD)
        (folder / "small").write_bytes(b"1")
        disk = TearingDisk()
        author = Author(folder, Replica(root, disk))
        author.push()
        author.replica.settle()
        (folder / "weights").write_bytes(new)
        (folder / "small").write_bytes(b"22")
        disk.steps_left = step
        ended = True
        try:
            author.push()
            author.replica.settle()
        except Stopped:
            ended = False
        author.replica.close()
        again = Replica(root)
        assert again.generation in (1, 2)
        assert again.generation == 2 or not ended
        content = new if again.generation == 2 else OLD
        assert (root / "weights").read_bytes() == content
        assert (root / "small").read_bytes() == (b"22" if again.generation == 2 else b"1")
        assert sorted(read_tree(root)) == ["small", "weights"]
        assert len(again.manifest) == 2
        author.replica = again
        author.push()
        assert (root / "weights").read_bytes() == new
        again.close()
        if ended:
            return
    pytest.fail("a push of two files took more than 40 steps")


def test_a_patch_that_lies_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(OLD)
    new = overwritten(OLD)
    writes = [(3 * MIB, b"x" * 5000)]
    blocks = Blocks()
    assert blocks.patched(str(path), digest_bytes(OLD), len(new), writes) == digest_bytes(new)
    wrong = [(3 * MIB + 1, b"x" * 5000)]
    assert blocks.patched(str(path), digest_bytes(OLD), len(new), wrong) != digest_bytes(new)
    (tmp_path / "patch").write_bytes(b"no patch")
    assert Patch.read(str(tmp_path / "patch")) is None
    assert Patch.read(str(tmp_path / "nothing")) is None


def test_equal_large_files_are_whole_both(folder: Path, replica: Replica) -> None:
    for name in ("one", "other"):
        (folder / name).write_bytes(OLD)
    author = Author(folder, replica)
    author.push()
    for name in ("one", "other"):
        (folder / name).write_bytes(overwritten(OLD))
    author.push()
    assert read_tree(replica.root) == read_tree(folder)
    assert manifest_of({"one": overwritten(OLD), "other": overwritten(OLD)}) == replica.manifest
    reply = replica.handle(stage_message(9, manifest_of({"one": OLD}), []))
    assert isinstance(reply, Staged)


def test_a_size_that_lies_makes_nobody_take_memory(folder: Path, replica: Replica) -> None:
    path = folder / "weights"
    path.write_bytes(OLD)
    author = Author(folder, replica)
    author.push()
    path.write_bytes(overwritten(OLD))
    author.push([path])
    replica.settle()
    lie = Manifest([Entry("weights", EntryKind.FILE, 0o644, 1 << 60, digest_bytes(OLD))])
    assert replica.handle(stage_message(3, lie, [])) == Need([digest_bytes(OLD)])
