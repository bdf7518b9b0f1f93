"""A replica in a container whose image holds a part of the workspace already.

The folders of an image cannot be renamed: the kernel's overlay file system refuses that (EXDEV).
As a program, ``python -m tests.sync.image_folders FOLDER`` mounts a real one there; else a fake
refuses the same.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from monarch_sync import Replica
from monarch_sync.messages import Committed
from tests.sync.trees import Tree, plant, push_tree, read_tree, whole

IMAGE: Tree = {
    "old/a": b"1", "old/deep/b": b"2", "data/a": b"1", "data/own": b"theirs", "way/own": b"theirs",
}  # fmt: skip
OURS: Tree = {"old/a": b"1", "old/deep/b": b"2", "data/a": b"1"}
RENAMED: Tree = {"new/a": b"1", "new/deep/b": b"2", "data": b"a file now", "way": b"ours"}

Rename = Callable[..., None]


def refuse_image(root: Path, rename: Rename) -> Rename:
    """``rename``, which does not move the folders that are below ``root`` now."""
    baked = {path.stat().st_ino for path in root.rglob("*") if path.is_dir()}

    def refuse(source: str | Path, target: str | Path) -> None:
        status = os.lstat(source)
        if stat.S_ISDIR(status.st_mode) and status.st_ino in baked:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        rename(source, target)

    return refuse


def check_pushes(root: Path) -> None:
    """``root``: a replica's folder in which the image's folders stand."""
    replica = Replica(root)
    try:
        _push(replica, OURS)
        assert read_tree(root) == whole(IMAGE)
        kept = _push(replica, RENAMED)
        tree = read_tree(root)
        assert len(kept) == 2
        for path in kept:
            assert path.startswith((b"data.host-", b"way.host-"))
            assert tree.pop(f"{path.decode()}/own") == b"theirs"
            assert tree.pop(path.decode()) is None
        assert tree == whole(RENAMED)
        # What we have made ourselves is not of the image, and moves as it is.
        made = (root / "new").stat().st_ino
        _push(replica, {**RENAMED, "newer/a": b"1", "newer/deep/b": b"2"}, "new/a", "new/deep/b")
        assert (root / "newer").stat().st_ino == made
    finally:
        replica.close()


def _push(replica: Replica, tree: Tree, *but: str) -> list[bytes]:
    tree = {path: what for path, what in tree.items() if path not in but}
    reply = push_tree(replica, replica.generation + 1, tree)
    assert isinstance(reply, Committed), reply
    return reply.kept


def main(folder: Path) -> None:
    lower, upper, work, merged = (folder / name for name in ("lower", "upper", "work", "merged"))
    for one in (lower, upper, work, merged):
        one.mkdir()
    plant(lower / "replica", IMAGE)
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=True)
    check_pushes(merged / "replica")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
