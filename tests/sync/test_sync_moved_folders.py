"""A folder that only got another name is not looked into, on either end; all else is."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_sync import Replica, Workspace
from monarch_sync.scanning.readings import Readings
from monarch_sync.touched import Touched
from monarch_sync.watching import inotify
from monarch_sync.watching.inotify import InotifyEvent
from monarch_sync.watching.watched_folders import WatchedFolders
from tests.sync.author import Author
from tests.sync.happenings import happen
from tests.sync.test_sync_watch import Asking


@pytest.fixture
def asking(folder: Path) -> Iterator[Asking]:
    for name in ("a/x.py", "a/deep/y.py", "b/z.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    asking = Asking(Workspace({folder: ""}))
    assert asking.look() is None
    yield asking
    asking.watcher.close()


def read_by(scanner_readings: Readings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that a scanner looks at from now on."""
    seen: list[str] = []
    look = Readings.look

    def note(self: Readings, local: str, *more: object) -> object:
        if self is scanner_readings:
            seen.append(local)
        return look(self, local, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Readings, "look", note)
    return seen


def test_what_is_in_a_renamed_folder_is_not_looked_at(
    asking: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = read_by(asking.scanner._looking.readings, monkeypatch)
    (folder / "a").rename(folder / "c")
    touched = asking.look()
    assert isinstance(touched, Touched)
    assert touched.moves == ((f"{folder}/a", f"{folder}/c"),)
    assert seen == []
    (folder / "c/deep").rename(folder / "b/deep")
    asking.look()
    assert seen == []
    (folder / "b/deep/y.py").write_text("new")
    asking.look()
    assert seen == [f"{folder}/b/deep/y.py"]


MESSES: list[Callable[[Path], object]] = [
    lambda at: (at / "a").rename(at / "c") and (at / "c/x.py").write_text("after"),
    lambda at: (at / "a/x.py").write_text("before") and (at / "a").rename(at / "c"),
    lambda at: (at / "a/new").mkdir() or (at / "a/new/f").touch() or (at / "a").rename(at / "c"),
    lambda at: (at / "a").rename(at / "c") and shutil.rmtree(at / "c"),
    lambda at: (at / "a").rename(at / "c") and (at / "b").rename(at / "a"),
    lambda at: (at / "a").rename(at / "c") and (at / "c").rename(at / "a"),
    lambda at: (at / "a").rename(at / "c") and (at / "c").chmod(0o700),
    lambda at: (at / "a").rename(at / "b/a") and (at / "b").rename(at / "c"),
    lambda at: ((at / "a").rename(at / "c") and shutil.rmtree(at / "c")) or (at / "c").mkdir(),
    lambda at: shutil.rmtree(at / "a") or (at / "a").mkdir() or (at / "a").rename(at / "c"),
    lambda at: (at / "a").rename(at / "c") and shutil.copytree(at / "c", at / "a"),
    lambda at: shutil.rmtree(at / "b") or (at / "a").rename(at / "b"),
    lambda at: (at / "a/deep").rename(at / "b/deep") and (at / "a").rename(at / "c"),
    lambda at: (at / "a").rename(at / "__pycache__"),
    lambda at: (at / "a").rename(at / "c").rename(at / "d") and (at / "b").rename(at / "c"),
    lambda at: os.link(at / "a/x.py", at / "b/x.py") or (at / "a").rename(at / "c"),
]


@pytest.mark.parametrize("mess", MESSES)
def test_whatever_else_happens_at_the_same_time_is_seen(
    asking: Asking, folder: Path, mess: Callable[[Path], object]
) -> None:
    mess(folder)
    asking.look()
    (folder / "b/late").parent.mkdir(exist_ok=True)
    (folder / "b/late").touch()
    for path in folder.rglob("x.py"):
        path.write_text("once more")
    assert asking.look() is not None


@pytest.mark.parametrize(
    "rules", ["/c/x.py\n", "a/deep\n", "c/\n", "!/c/x.py\n*.py\n", "**/deep/y.py\n", "b/*/x.py\n"]
)
def test_rules_that_say_where_are_asked_again(asking: Asking, folder: Path, rules: str) -> None:
    (folder / ".gitignore").write_text(rules)
    asking.look()
    (folder / "a").rename(folder / "c")
    asking.look()
    (folder / "c").rename(folder / "b/c")
    asking.look()
    for path in [*folder.rglob("x.py"), *folder.rglob("y.py")]:
        path.write_text("new")
    asking.look()


def test_a_folder_brings_its_own_rules_and_leaves_others_behind(
    asking: Asking, folder: Path
) -> None:
    (folder / "a/.gitignore").write_text("/x.py\n")
    (folder / "b/.gitignore").write_text("y.py\n")
    asking.look()
    for old, new in (("a", "c"), ("c", "b/c"), ("b/c/deep", "deep"), ("deep", "b/deep")):
        (folder / old).rename(folder / new)
        asking.look()


@pytest.mark.parametrize("seed", range(3))
def test_random_renames_among_random_edits_are_all_known(
    asking: Asking, folder: Path, seed: int
) -> None:
    rand = random.Random(seed)
    num_moved = 0
    for _ in range(60):
        for _ in range(rand.choice([0, 0, 1, 3])):
            happen(folder, rand)
        folders = [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
        for path in rand.sample(folders, min(len(folders), rand.choice([1, 1, 2]))):
            target = rand.choice([folder, *folders]) / rand.choice("abcde")
            is_free = target.parent.exists() and not target.exists()
            if path.exists() and is_free and path not in target.parents:
                path.rename(target)
        touched = asking.look()
        num_moved += len(touched.moves) if isinstance(touched, Touched) else 0
    assert num_moved > 5


@pytest.mark.parametrize("between", [[], [InotifyEvent(2, inotify.MOVED_FROM, 8, "x.py")]])
def test_what_happens_in_a_folder_on_its_way_is_not_passed_over(
    between: list[InotifyEvent],
) -> None:
    folders = WatchedFolders(Numbers())  # type: ignore[arg-type]
    folders.add_root("/root")
    folders.add("/root", "a")
    leaves = InotifyEvent(1, inotify.MOVED_FROM | inotify.IS_DIR, 7, "a")
    comes = InotifyEvent(1, inotify.MOVED_TO | inotify.IS_DIR, 7, "c")
    folders.take([leaves, *between, comes], 0.0)
    assert folders.touched == {"/root/a", "/root/c"}
    assert folders.moves == ([] if between else [("/root/a", "/root/c")])


def test_a_file_that_is_written_in_a_folder_on_its_way_is_not_waited_for() -> None:
    """Its place has no name, and so nobody would ever hear that it was closed."""
    folders = WatchedFolders(Numbers())  # type: ignore[arg-type]
    folders.add_root("/root")
    folders.add("/root", "a")
    leaves = InotifyEvent(1, inotify.MOVED_FROM | inotify.IS_DIR, 7, "a")
    folders.take([leaves, InotifyEvent(2, inotify.MODIFY, 0, "log")], 0.0)
    assert not folders.written
    assert folders.touched == {"/root/a"}


class Numbers:
    """An inotify queue that only counts its watches."""

    def __init__(self) -> None:
        self.number = 0

    def watch(self, path: str) -> int:
        self.number += 1
        return self.number

    def unwatch(self, number: int) -> None:
        pass


def test_a_set_that_is_made_of_others_knows_no_moves() -> None:
    one = Touched(["/a", "/b"], [("/a", "/b")])
    assert one.moves
    assert not isinstance(one | {Path("/c")}, Touched)
    assert not isinstance(one - {Path("/b")}, Touched)
    assert one | {Path("/c")} == {Path("/c")} | one == {Path("/a"), Path("/b"), Path("/c")}


def test_touched_paths_are_a_set_like_any_other() -> None:
    one = Touched(["/a", "/b"])
    same = frozenset({Path("/a"), Path("/b")})
    assert one == same
    assert same == one
    assert hash(one) == hash(same)
    assert set(one) == same
    assert Path("/a") in one
    assert Path("/c") not in one
    assert "/a" not in one
    assert len(one) == 2
    assert not Touched([])


@pytest.mark.parametrize("theirs", ["a/deep/er/checkpoint.pt", "a/deep/__pycache__/note", "a/w"])
def test_a_file_of_the_hosts_own_is_found_however_often_a_folder_has_moved(
    folder: Path, tmp_path: Path, theirs: str
) -> None:
    replica = Replica(tmp_path / "replica", tick_ns=0)
    (folder / "a/deep/er").mkdir(parents=True)
    (folder / "a/deep/x.py").write_text("1")
    author = Author(folder, replica)
    author.push()
    cache = replica.root / "a/deep/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"compiled")
    for old, new in (("a", "b"), ("b", "c"), ("c", "a")):
        (folder / old).rename(folder / new)
        push = author.push()
        assert push.staged is not None
        assert push.staged.moves == [(old.encode(), new.encode())]
    (replica.root / theirs).write_bytes(b"theirs")
    (folder / "a").rename(folder / "b")
    push = author.push()
    assert push.staged is not None
    assert push.staged.moves == []
    assert (replica.root / theirs).read_bytes() == b"theirs"
    replica.close()


def test_a_second_file_like_one_in_a_renamed_folder_is_a_file_of_its_own(
    folder: Path, replica: Replica
) -> None:
    (folder / "a").mkdir()
    (folder / "a/x").write_bytes(b"1")
    (folder / "a/y").write_bytes(b"2")
    author = Author(folder, replica)
    author.push()
    (folder / "a").rename(folder / "b")
    (folder / "like_x").write_bytes(b"1")
    (folder / "like_x").chmod(0o755)
    push = author.push()
    assert push.staged is not None
    assert push.staged.moves == [(b"a", b"b")]
    first, second = (replica.root / "b/x").stat(), (replica.root / "like_x").stat()
    assert first.st_ino != second.st_ino
    assert (first.st_mode & 0o777, second.st_mode & 0o777) == (
        (folder / "b/x").stat().st_mode & 0o777, 0o755,
    )  # fmt: skip
