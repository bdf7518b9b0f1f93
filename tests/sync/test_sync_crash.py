"""A replica that is stopped at any step holds the old state or, once reopened, the new one."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_sync import Replica
from monarch_sync.disk import Disk
from monarch_sync.messages import Commit, Committed, Refused, Staged
from tests.sync.trees import Tree, manifest_of, push_tree, read_tree, stage_message, whole


class Stopped(BaseException):
    """The power went: nobody may catch this and tidy up."""


class FailingDisk(Disk):
    """Fails at one step, counted from when it is armed."""

    def __init__(self) -> None:
        self.steps_left = -1
        self.failure: BaseException = Stopped()

    def arm(self, steps: int, failure: BaseException) -> None:
        self.steps_left, self.failure = steps, failure

    def __getattribute__(self, name: str) -> object:
        if name in Disk.__dict__ and not name.startswith("_"):
            self.step()
        return super().__getattribute__(name)

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == -1:
            raise self.failure


names = st.sampled_from(["a", "b", "c.py"])
contents = st.sampled_from([b"", b"1", b"2", b"three"])
nodes = st.recursive(
    contents | st.sampled_from(["a", "b"]) | st.none(),
    lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
trees = st.dictionaries(names, nodes, max_size=3).map(lambda tree: flatten(tree))


def flatten(nested: dict[str, object], above: str = "") -> Tree:
    flat: Tree = {}
    for name, what in nested.items():
        if isinstance(what, dict):
            flat[above + name] = None
            flat.update(flatten(what, f"{above}{name}/"))
        else:
            flat[above + name] = what  # type: ignore[assignment]
    return flat


def crash_at(step: int, old: Tree, new: Tree, root: Path) -> bool:
    """Stop a push at a step, reopen, compare. Whether the push ran to its end instead."""
    disk = FailingDisk()
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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=trees, new=trees)
def test_a_crash_at_any_step_leaves_one_state_whole(old: Tree, new: Tree) -> None:
    for step in range(200):
        with tempfile.TemporaryDirectory() as folder:
            if crash_at(step, old, new, Path(folder, "replica")):
                return
    pytest.fail("a push of a dozen files took more than 200 steps")


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


@pytest.mark.parametrize("step", range(8))
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
    replica.close()
    again = Replica(tmp_path)
    assert read_tree(tmp_path) == whole(new if again.generation == 2 else old)
    assert isinstance(reply, Refused)
    assert isinstance(push_tree(again, 3, new), Committed)
    assert read_tree(tmp_path) == whole(new)
    again.close()
