"""A replica that is stopped at any step holds the old state or, once reopened, the new one."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from monarch_sync import Manifest, Replica
from monarch_sync.content.digest import digest_bytes
from monarch_sync.content.disk import Disk
from monarch_sync.messages import (
    Abort,
    AskHistory,
    Commit,
    Committed,
    HistoryReply,
    Refused,
    Staged,
)
from monarch_sync.tree.entry import Entry, EntryKind
from tests.sync.test_sync_bad_input import as_nobody
from tests.sync.trees import (
    Tree,
    manifest_of,
    push_tree,
    read_tree,
    stage_message,
    trees,
    whole,
)


class Stopped(BaseException):
    """The power went: nobody may catch this and tidy up."""


class FailingDisk(Disk):
    """Fails at one step, counted from when it is armed."""

    def __init__(self, *, can_exchange: bool = True) -> None:
        super().__init__(can_exchange=can_exchange)
        self.steps_left = -1
        self.failure: BaseException = Stopped()

    def arm(self, steps: int, failure: BaseException) -> None:
        self.steps_left, self.failure = steps, failure

    def __getattribute__(self, name: str) -> object:
        if name in Disk.__dict__ and not name.startswith("_") and name != "append":
            self.step()
        return super().__getattribute__(name)

    def append(self, path: Path, offset: int, content: bytes) -> None:
        # Cut short in the middle of a write, too: the record is torn.
        torn = self.steps_left == 0
        try:
            self.step()
        except BaseException:
            if torn:
                Disk.append(self, path, offset, content[: len(content) // 2])
            raise
        Disk.append(self, path, offset, content)

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == -1:
            raise self.failure


def crash_at(step: int, old: Tree, new: Tree, root: Path, *, can_exchange: bool = True) -> bool:
    """Stop a push at a step, reopen, compare. Whether the push ran to its end instead."""
    disk = FailingDisk(can_exchange=can_exchange)
    replica = Replica(root, disk)
    assert isinstance(push_tree(replica, 1, old), Committed)
    (root / "checkpoint.pt").write_bytes(b"weights")
    disk.arm(step, Stopped())
    ended = True
    try:
        assert isinstance(push_tree(replica, 2, new), Committed)
    except Stopped:
        ended = False
    replica.close()
    replica = Replica(root)
    tree = read_tree(root)
    assert tree.pop("checkpoint.pt") == b"weights"
    expected = new if replica.generation == 2 else old
    assert replica.generation == 2 or not ended
    assert tree == whole(expected)
    assert replica.manifest == manifest_of(expected)
    replica.close()
    return ended


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=trees, new=trees)
def test_a_crash_at_any_step_leaves_one_state_whole(old: Tree, new: Tree) -> None:
    crash_everywhere(old, new)


@pytest.mark.long
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=trees, new=trees)
def test_so_does_one_where_files_cannot_change_places(old: Tree, new: Tree) -> None:
    crash_everywhere(old, new, can_exchange=False)


def crash_everywhere(old: Tree, new: Tree, *, can_exchange: bool = True) -> None:
    for step in range(200):
        with tempfile.TemporaryDirectory() as folder:
            if crash_at(step, old, new, Path(folder, "replica"), can_exchange=can_exchange):
                return
    pytest.fail("a push of a dozen files took more than 200 steps")


def test_after_a_crash_at_any_step_a_closed_folder_is_closed(tmp_path: Path) -> None:
    """The commit opened it for itself, and was cut short before it could close it."""

    def push(replica: Replica, generation: int, content: bytes) -> None:
        folder = Entry("d", EntryKind.DIR, 0o555)
        file = Entry("d/x", EntryKind.FILE, 0o644, len(content), digest_bytes(content))
        stage = stage_message(generation, Manifest([folder, file]), [content])
        assert isinstance(replica.handle(stage, [content]), Staged)
        assert isinstance(replica.handle(Commit(generation)), Committed)
        replica.settle()

    tmp_path = tmp_path / "nobody"
    tmp_path.mkdir()
    with as_nobody(tmp_path):
        for step in range(60):
            root = tmp_path / str(step)
            disk = FailingDisk()
            replica = Replica(root, disk)
            push(replica, 1, b"1")
            disk.arm(step, Stopped())
            ended = True
            try:
                push(replica, 2, b"2")
            except Stopped:
                ended = False
            replica.close()
            Replica(root).close()
            mode = stat.S_IMODE((root / "d").stat().st_mode)
            (root / "d").chmod(0o755)
            assert mode == 0o555, f"stopped at step {step}"
            if ended:
                return
    pytest.fail("a push of one file took more than 60 steps")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_after_a_crash_at_any_step_the_way_back_needs_no_bytes(
    tmp_path: Path, can_exchange: bool
) -> None:
    """What was replaced is in the store, wherever the commit or its aftermath was cut short."""
    one: Tree = {"a": b"1", "b": b"2", "d/c": b"3", "gone": b"5"}
    other: Tree = {"a": b"one", "b": b"two", "d/c": b"three", "new": b"6"}
    for step in range(60):
        root = tmp_path / str(step)
        disk = FailingDisk(can_exchange=can_exchange)
        replica = Replica(root, disk)
        push_tree(replica, 1, one)
        push_tree(replica, 2, other)
        push_tree(replica, 3, one)
        disk.arm(step, Stopped())
        ended = True
        try:
            push_tree(replica, 4, other)
        except Stopped:
            ended = False
        replica.close()
        again = Replica(root)
        back = one if again.generation == 4 else other
        assert isinstance(again.handle(stage_message(5, manifest_of(back), [])), Staged)
        assert isinstance(again.handle(Commit(5)), Committed)
        again.settle()
        assert read_tree(root) == whole(back)
        again.close()
        if ended:
            return
    pytest.fail("a push of a few files took more than 60 steps")


MOVES: list[tuple[Tree, Tree]] = [
    ({"b/a": b""}, {"a": None, "b": "b"}),
    ({"b/a": b"1", "b/c": b"2"}, {"c/a": b"1", "b": "c"}),
    ({"d/x": b"1", "d/e/y": b"2"}, {"moved/x": b"1", "moved/e/y": b"2"}),
    ({"d/x": b"1", "d/e/y": b"2"}, {"d/d/x": b"1", "d/d/e/y": b"2"}),
    ({"d/x": b"1", "t": b"3"}, {"t/d/x": b"1"}),
    ({"d/x": b"1", "e/x": b"2"}, {"d/x": b"2", "f/x": b"1"}),
]


@pytest.mark.parametrize(("old", "new"), MOVES)
def test_a_crash_while_folders_move_leaves_one_state_whole(
    tmp_path: Path, old: Tree, new: Tree
) -> None:
    for step in range(100):
        if crash_at(step, old, new, tmp_path / str(step)):
            return
    pytest.fail("a push of a few files took more than 100 steps")


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("compacts_at", "lacks"), [(0, ""), (300, ""), (0, "exchange"), (0, "exchange and links")]
)
def test_a_crash_in_any_push_of_many_leaves_that_one_or_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacts_at: int, lacks: str
) -> None:
    """Many pushes, so that the log is folded on the way; stopped at every step of them."""
    if "links" in lacks:
        monkeypatch.setattr("os.link", _refuse)
    trees: list[Tree] = [{f"f{k}": b"%d" % (i if k == i % 4 else 0) for k in range(4)}
                         for i in range(6)]  # fmt: skip
    for step in range(300):
        root = tmp_path / str(step)
        disk = FailingDisk(can_exchange="exchange" not in lacks)
        replica = Replica(root, disk, min_log_bytes=compacts_at)
        disk.arm(step, Stopped())
        done = 0
        try:
            for generation, tree in enumerate(trees, 1):
                assert isinstance(push_tree(replica, generation, tree), Committed)
                done = generation
        except Stopped:
            pass
        replica.close()
        again = Replica(root)
        assert again.generation in (done, done + 1)
        expected = trees[again.generation - 1] if again.generation else {}
        assert again.manifest == manifest_of(expected)
        assert read_tree(root) == expected
        assert isinstance(push_tree(again, 100, trees[0]), Committed)
        assert read_tree(root) == trees[0]
        again.close()
        if done == len(trees):
            return
    pytest.fail("six small pushes took more than 300 steps")


def test_after_a_crash_at_any_step_the_history_has_what_is_here_once(tmp_path: Path) -> None:
    """A push is noted once it has been answered, so it may be cut short in between."""
    trees: list[Tree] = [{"d/a": b"1", "b": b"1"}, {"e/a": b"1", "b": b"1"}, {"e/a": b"1"}]
    for step in range(100):
        root = tmp_path / str(step)
        disk = FailingDisk()
        replica = Replica(root, disk)
        push_tree(replica, 1, trees[0])
        disk.arm(step, Stopped())
        done = 1
        try:
            for generation in (2, 3):
                assert isinstance(push_tree(replica, generation, trees[generation - 1]), Committed)
                done = generation
        except Stopped:
            pass
        replica.close()
        disk = FailingDisk()
        disk.arm(2 + step % 5, OSError(errno.EIO, "Input/output error"))
        again = Replica(root, disk)  # what fails now is tried again with the next message
        disk.steps_left = -1
        assert isinstance(again.handle(AskHistory(9)), HistoryReply)
        past = list(again.past())
        assert [one.generation for one in past] == list(range(again.generation, 0, -1)), step
        assert again.generation in (done, done + 1)
        assert [one.manifest for one in past] == [
            manifest_of(tree) for tree in reversed(trees[: again.generation])
        ]
        assert all(one.is_whole and one.num_changed == 1 for one in past[:-1])
        assert all(one.seconds > 1e9 for one in past)
        again.close()
        if done == 3:
            return
    pytest.fail("three small pushes took more than 100 steps")


def test_a_history_that_has_no_room_is_written_with_the_next_message(tmp_path: Path) -> None:
    disk = FailingDisk()
    replica = Replica(tmp_path, disk)
    push_tree(replica, 1, {"a": b"1"})
    stage = stage_message(2, manifest_of({"a": b"2"}), [b"2"])
    assert isinstance(replica.handle(stage, [b"2"]), Staged)
    assert isinstance(replica.handle(Commit(2)), Committed)
    disk.arm(1, OSError(errno.EIO, "Input/output error"))  # at 0, the old file goes to the store
    replica.settle()
    assert not replica.is_settled
    assert isinstance(replica.handle(AskHistory(9)), HistoryReply)
    assert [(one.generation, one.is_whole) for one in replica.past()] == [(2, True), (1, True)]
    replica.close()


def _refuse(*names: object, **options: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_log_with_damage_inside_is_believed_up_to_there(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    sizes = []
    for generation in range(1, 4):
        push_tree(replica, generation, {"a": b"%d" % generation})
        sizes.append((replica.state_folder / "log.2").stat().st_size)
    replica.close()
    log = replica.state_folder / "log.2"
    data = bytearray(log.read_bytes())
    data[sizes[1] + 30] ^= 1
    log.write_bytes(data)
    again = Replica(tmp_path)
    assert again.generation == 2
    assert isinstance(push_tree(again, 3, {"a": b"3"}), Committed)
    again.close()
    last = Replica(tmp_path)
    assert last.generation == 3
    last.close()


def test_a_full_disk_while_staging_changes_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    replica = Replica(tmp_path, disk)
    push_tree(replica, 1, {"a": b"1"})
    disk.arm(0, OSError(errno.ENOSPC, "No space left on device"))
    reply = push_tree(replica, 2, {"a": b"2"})
    assert isinstance(reply, Refused)
    assert "space" in reply.reason
    assert read_tree(tmp_path) == {"a": b"1"}
    assert isinstance(push_tree(replica, 2, {"a": b"2"}), Committed)
    replica.close()


@pytest.mark.parametrize("step", range(9))
def test_a_disk_error_within_a_commit_can_be_recovered(tmp_path: Path, step: int) -> None:
    old: Tree = {"a": b"1", "b": b"2", "c": b"3"}
    new: Tree = {"a": b"one", "b": b"two", "d": b"four"}
    disk = FailingDisk()
    replica = Replica(tmp_path, disk)
    push_tree(replica, 1, old)
    files = [content for content in new.values() if isinstance(content, bytes)]
    assert isinstance(replica.handle(stage_message(2, manifest_of(new), files), files), Staged)
    disk.arm(step, OSError(errno.EIO, "Input/output error"))
    reply = replica.handle(Commit(2))
    # Before the answer: the journal, one file gone, two replaced, one new.
    assert isinstance(reply, Refused) == (step < 5)
    replica.settle()
    replica.close()
    again = Replica(tmp_path)
    assert read_tree(tmp_path) == whole(new if again.generation == 2 else old)
    assert again.generation == 2 or step < 1
    assert isinstance(push_tree(again, 3, new), Committed)
    assert read_tree(tmp_path) == whole(new)
    again.close()


def test_what_comes_back_from_the_store_is_found_there_after_a_disk_error(tmp_path: Path) -> None:
    one: Tree = {"a": b"1", "b": b"2"}
    for step in range(30):
        disk = FailingDisk()
        replica = Replica(tmp_path / str(step), disk)
        push_tree(replica, 1, one)
        push_tree(replica, 2, {})
        disk.arm(step, OSError(errno.EIO, "input/output error"))
        replica.handle(stage_message(3, manifest_of(one), []))
        replica.handle(Commit(3))
        ended = disk.steps_left >= 0
        replica.handle(Abort(3))
        expected = one if replica.generation == 3 else {}
        assert read_tree(replica.root) == expected, f"failed at step {step}"
        replica.close()
        if ended:
            return
    pytest.fail("a push of two files took more than 30 steps")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_disk_error_on_the_way_back_leaves_nothing_that_is_not_known(
    tmp_path: Path, can_exchange: bool
) -> None:
    """Contents that come from the store, in a process that goes on after the error."""
    one: Tree = {"a": b"1", "b": b"2", "c": b"3"}
    other: Tree = {"a": b"one", "b": b"two", "c": b"three"}
    for step in range(40):
        disk = FailingDisk(can_exchange=can_exchange)
        replica = Replica(tmp_path / str(step), disk)
        for generation, tree in enumerate((one, other, one), 1):
            push_tree(replica, generation, tree)
        assert isinstance(replica.handle(stage_message(4, manifest_of(other), [])), Staged)
        disk.arm(step, OSError(errno.EIO, "Input/output error"))
        reply = replica.handle(Commit(4))
        replica.settle()
        has_failed = disk.steps_left < 0
        disk.steps_left = -1
        # The next message carries on, or begins anew; then there and back without a byte.
        for generation, tree in ((5, one), (6, other)):
            assert isinstance(
                replica.handle(stage_message(generation, manifest_of(tree), [])), Staged
            ), step
            assert isinstance(replica.handle(Commit(generation)), Committed)
            assert read_tree(replica.root) == whole(tree)
        replica.close()
        if not has_failed:
            assert isinstance(reply, Committed)
            return
    pytest.fail("a commit of a few files took more than 40 steps")
