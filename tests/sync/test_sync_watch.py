"""Whatever happens to a tree, what the watcher leads to is what a whole scan finds."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_sync import Scanner, Watcher, Workspace
from monarch_sync import scan as scan_once

NAMES = ("a", "b", "c.py", "d")


class Following:
    """A scanner on a thread that looks only where its watcher says."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        self.watcher = Watcher(workspace)
        self.num_bursts = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for touched in self.watcher:
                self.num_bursts += 1
                self.scanner.rescan(touched) if touched else self.scanner.scan()
        except BaseException as error:
            self.error = error

    def wait_until_equal(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while True:
            assert self.error is None
            truth = scan_once(self.workspace).manifest
            if self.scanner.manifest == truth:
                return
            assert time.monotonic() < deadline, "the watcher missed something"
            threading.Event().wait(0.05)

    def close(self) -> None:
        self.watcher.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def following(folder: Path) -> Iterator[Following]:
    following = Following(Workspace({folder: ""}))
    (folder / "first").write_bytes(b"1")
    following.wait_until_equal()
    yield following
    following.close()


def happen(folder: Path, rand: random.Random) -> None:
    """One random event in a tree."""
    path = folder.joinpath(*rand.choices(NAMES, k=rand.randint(1, 4)))
    what = rand.choice(["write", "write", "write", "append", "save", "remove", "move", "tree"])
    try:
        if what == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rand.randbytes(rand.randint(0, 20)))
        elif what == "append":
            with open(path, "ab") as file:
                file.write(b"more")
        elif what == "save":
            beside = path.with_name(".swap")
            beside.write_bytes(rand.randbytes(8))
            beside.rename(path)
        elif what == "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif what == "move":
            path.rename(folder.joinpath(*rand.choices(NAMES, k=rand.randint(1, 3))))
        else:
            inner = path / "n1" / "n2"
            inner.mkdir(parents=True)
            for i in range(5):
                (inner / str(i)).write_bytes(b"%d" % i)
    except OSError:
        pass  # a file where a folder is needed, a folder that is not empty, nothing there


@pytest.mark.parametrize("seed", range(4))
def test_random_edits_are_all_found(following: Following, folder: Path, seed: int) -> None:
    rand = random.Random(seed)
    for _ in range(6):
        for _ in range(rand.randint(1, 80)):
            happen(folder, rand)
        following.wait_until_equal()
    assert following.num_bursts > 0


@pytest.mark.slow
def test_a_burst_of_10_000_events_is_all_found(following: Following, folder: Path) -> None:
    for i in range(100):
        inner = folder / f"d{i}" / "nested"
        inner.mkdir(parents=True)
        for k in range(100):
            (inner / str(k)).write_bytes(b"1")
    following.wait_until_equal(60)
    assert following.scanner.manifest is not None
    assert following.scanner.manifest.num_files == 10_001


def test_switching_branches_back_and_forth_is_all_found(following: Following, folder: Path) -> None:
    (folder / ".git").mkdir()
    lock = folder / ".git/index.lock"
    for state in range(4):
        lock.write_bytes(b"")
        for i in range(300):
            path = folder / f"pkg{i % 7}" / f"branch{state % 2}" / str(i)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % (state % 2))
        for package in folder.glob("pkg*"):
            shutil.rmtree(package / f"branch{1 - state % 2}", ignore_errors=True)
        lock.unlink()
        (folder / "touched").write_bytes(b"%d" % state)
        following.wait_until_equal()
