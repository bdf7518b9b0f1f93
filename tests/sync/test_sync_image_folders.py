"""Where folders came with a container's image, a push gets through, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch_sync import Replica
from monarch_sync.messages import Committed
from tests.sync.image_folders import IMAGE, OURS, RENAMED, check_pushes, refuse_image
from tests.sync.test_sync_crash import FailingDisk, Stopped
from tests.sync.trees import manifest_of, plant, push_tree

NAMESPACE = ["unshare", "--mount"]  # its mounts end with it


def test_folders_of_a_real_image_need_not_be_renamed(tmp_path: Path) -> None:
    probe = "mount -t tmpfs tmpfs {0} && mkdir {0}/l {0}/u {0}/w && mount -t overlay overlay -o "
    probe += "lowerdir={0}/l,upperdir={0}/u,workdir={0}/w {0}"
    if subprocess.run(
        [*NAMESPACE, "sh", "-c", probe.format(tmp_path)], capture_output=True, check=False
    ).returncode:
        pytest.skip("no overlay may be mounted here")
    # On a file system that can be an upper layer, which another overlay is not.
    run = f'mount -t tmpfs tmpfs {tmp_path} && exec "{sys.executable}" -m tests.sync.image_folders'
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", f"{run} {tmp_path}"],
        capture_output=True, text=True, check=False, timeout=60,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_nor_where_something_refuses_as_an_image_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "replica"
    plant(root, IMAGE)
    _bake(root, monkeypatch)
    check_pushes(root)


def test_a_crash_at_any_step_leaves_one_state_whole_there_too(tmp_path: Path) -> None:
    """With all of what is ours in the image, too: it was made after a push."""
    for step in range(200):
        root = tmp_path / str(step) / "replica"
        with pytest.MonkeyPatch.context() as patch:
            if _crash_at(step, root, patch):
                return
    pytest.fail("a push of a few files took more than 200 steps")


def _crash_at(step: int, root: Path, patch: pytest.MonkeyPatch) -> bool:
    """Whether the push ran to its end instead."""
    root.parent.mkdir()
    plant(root, IMAGE)
    disk, ended = FailingDisk(), True
    replica = Replica(root, disk)
    push_tree(replica, 1, OURS)
    _bake(root, patch)
    disk.arm(step, Stopped())
    try:
        assert isinstance(push_tree(replica, 2, RENAMED), Committed)
    except Stopped:
        ended = False
    replica.close()
    replica = Replica(root)
    shown = RENAMED if replica.generation == 2 else OURS
    assert replica.generation == 2 or not ended
    assert replica.manifest == manifest_of(shown)
    assert all((root / path).read_bytes() == what for path, what in shown.items())
    assert (root / "old").exists() == (replica.generation == 1)
    theirs = [path for path in root.rglob("own") if path.read_bytes() == b"theirs"]
    assert len(theirs) == 2
    replica.close()
    return ended


def _bake(root: Path, patch: pytest.MonkeyPatch) -> None:
    for name in ("rename", "replace"):
        patch.setattr(os, name, refuse_image(root, getattr(os, name)))
