"""Whatever happens to a tree, what the watcher leads to is what a whole scan finds."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monarch_sync import Scanner, Watcher, Workspace, WorkspaceMissing
from monarch_sync import scan as scan_once
from monarch_sync.ignoring.git_index import find_git_dir
from monarch_sync.watching.git_locks import GitLocks
from monarch_sync.watching.inotify import Inotify
from monarch_sync.watching.live_watch import LiveWatch
from monarch_sync.watching.watch import quiet_seconds
from tests.support import wait_for
from tests.sync.happenings import happen, switch_branch


def overflow(one: Path, other: Path) -> None:
    """More events than the kernel keeps; two in turn, because it takes equal ones for one."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(limit // 2 + 500):
        os.utime(one)
        os.utime(other)


class Asking:
    """A scanner that looks only where its watcher says; asked, not woken."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        self.watcher = Watcher(workspace)
        self.num_whole = -1  # the first look is always at everything

    def look(self) -> set[Path] | None:
        """Catch up; what is known then is what a whole scan finds, at once and every time."""
        touched = self.watcher.changes()
        self.num_whole += touched is None
        scan = self.scanner.scan() if touched is None else self.scanner.rescan(touched)
        truth = scan_once(self.workspace)
        missed = scan.manifest.changed_paths(truth.manifest)
        assert not missed, (missed, touched)
        assert set(scan.problems) == set(truth.problems)
        return touched


class Following:
    """A scanner on a thread that looks where its watcher says, whenever that wakes it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.scanner = Scanner(workspace)
        self.watcher = Watcher(workspace, poll_seconds=0.02, audit_seconds=0.05)
        self.bursts: list[set[Path]] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for touched in self.watcher:
                # Ahead of the look: who waits for its outcome asks next which bursts led to it.
                self.bursts.append(touched)
                try:
                    self.scanner.rescan(touched) if touched else self.scanner.scan()
                except WorkspaceMissing:
                    self.scanner.manifest = None
        except BaseException as error:
            self.error = error

    def wait_until_equal(self, seconds: float = 30) -> None:
        deadline, pause = time.monotonic() + seconds, 0.01
        while True:
            assert self.error is None
            truth = scan_once(self.workspace).manifest
            if self.scanner.manifest == truth:
                return
            assert time.monotonic() < deadline, "the watcher missed something"
            pause = min(2 * pause, 0.5)  # a whole scan now and then leaves time for the watcher
            threading.Event().wait(pause)

    def close(self) -> None:
        self.watcher.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def asking(folder: Path) -> Iterator[Asking]:
    asking = Asking(Workspace({folder: ""}))
    assert asking.look() is None
    yield asking
    asking.watcher.close()


@pytest.fixture(params=["inotify", "watchfiles", "looks"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How saves are noticed: by whatever the system and its file systems have."""
    kind: str = request.param
    if kind == "watchfiles":
        monkeypatch.setattr("monarch_sync.watching.watch.is_there", lambda: False)
    elif kind == "looks":
        monkeypatch.setattr("monarch_sync.watching.cover.tells_all", lambda path: False)
    return kind


@pytest.fixture
def following(folder: Path) -> Iterator[Following]:
    following = Following(Workspace({folder: ""}))
    (folder / "first").write_bytes(b"1")
    following.wait_until_equal()
    yield following
    following.close()


def test_a_name_that_moves_out_of_sight_still_writes_to_the_file(
    asking: Asking, folder: Path
) -> None:
    (folder / ".gitignore").write_text("/hidden\n")
    (folder / "hidden").mkdir()
    (folder / "one").write_bytes(b"1")
    (folder / "two").hardlink_to(folder / "one")
    (folder / "inner").mkdir()
    (folder / "inner" / "three").write_bytes(b"3")
    (folder / "four").hardlink_to(folder / "inner" / "three")
    asking.look()
    (folder / "one").rename(folder / "hidden" / "one")
    (folder / "inner").rename(folder / "hidden" / "inner")
    asking.look()
    (folder / "hidden" / "one").write_bytes(b"2")
    (folder / "hidden" / "inner" / "three").write_bytes(b"4")
    asking.look()


def test_a_file_gets_another_name_and_is_written_through_it(asking: Asking, folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "one").write_bytes(b"1")
    (folder / "two").write_bytes(b"2")
    asking.look()
    (folder / "three").hardlink_to(folder / "two")
    (folder / "three").write_bytes(b"3")
    asking.look()
    assert asking.num_whole == 0
    # By now, the name that it was read under is another.
    (folder / "inner").rename(folder / "outer")
    asking.look()
    (folder / "four").hardlink_to(folder / "outer" / "one")
    (folder / "four").write_bytes(b"4")
    asking.look()


def test_a_name_that_is_gone_does_not_count(asking: Asking, folder: Path) -> None:
    (folder / ".gitignore").write_text("/hidden\n")
    (folder / "hidden").mkdir()
    (folder / "one").write_bytes(b"1")
    (folder / "two").hardlink_to(folder / "one")
    asking.look()
    (folder / "hidden" / "three").hardlink_to(folder / "two")
    (folder / "one").unlink()
    (folder / "two").chmod(0o600)
    asking.look()
    (folder / "hidden" / "three").write_bytes(b"2")
    asking.look()


def test_a_worktree_inside_ends_and_begins(asking: Asking, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("/inner/a\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "a").write_bytes(b"1")
    (folder / "inner" / ".git").write_text("gitdir: elsewhere\n")
    asking.look()
    (folder / "inner" / ".git").unlink()
    asking.look()
    (folder / "inner" / ".git").write_text("gitdir: elsewhere\n")
    asking.look()


def test_a_file_that_had_names_before_it_moved_gets_another_one(
    asking: Asking, folder: Path
) -> None:
    for name in ("inner", "outer"):
        (folder / name).mkdir()
    (folder / "inner" / "one").write_bytes(b"1")
    (folder / "inner" / "two").hardlink_to(folder / "inner" / "one")
    asking.look()
    (folder / "inner" / "two").unlink()
    (folder / "inner" / "one").rename(folder / "outer" / "three")
    asking.look()
    (folder / "four").hardlink_to(folder / "outer" / "three")
    (folder / "four").write_bytes(b"4")
    asking.look()


def test_a_new_folder_has_another_name_of_a_file_in_it(asking: Asking, folder: Path) -> None:
    (folder / "one").write_bytes(b"1")
    asking.look()
    (folder / "new").mkdir()
    (folder / "new" / "two").hardlink_to(folder / "one")
    (folder / "new" / "two").write_bytes(b"2")
    asking.look()
    assert asking.num_whole == 0


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "num_events", [300, 301, 302, pytest.param(10_000, marks=[pytest.mark.huge])]
)
def test_random_edits_are_all_known_when_asked(
    asking: Asking, folder: Path, num_events: int
) -> None:
    rand = random.Random(num_events)
    num_looks = 0
    while num_events > 0:
        for _ in range(rand.choice([1, 1, 2, 10, 100])):
            num_events -= happen(folder, rand)
        asking.look()
        num_looks += 1
    # Only where there are new rules is everything looked at.
    assert asking.num_whole < num_looks / 2


@pytest.mark.long_but(1)
@pytest.mark.parametrize("seed", range(2))
def test_random_edits_are_all_followed(
    kind: str, following: Following, folder: Path, seed: int
) -> None:
    rand = random.Random(seed)
    for _ in range(6):
        for _ in range(rand.randint(1, 80)):
            happen(folder, rand)
        following.wait_until_equal()
    assert len(following.bursts) > 1


@pytest.mark.long_but(1)
@pytest.mark.parametrize("num_files", [2_000, pytest.param(10_000, marks=pytest.mark.huge)])
def test_a_burst_of_thousands_of_events_is_all_followed(
    kind: str, following: Following, folder: Path, num_files: int
) -> None:
    for i in range(100):
        inner = folder / f"d{i}" / "nested"
        inner.mkdir(parents=True)
        for k in range(num_files // 100):
            (inner / str(k)).write_bytes(b"1")
    following.wait_until_equal(60)
    assert following.scanner.manifest is not None
    assert following.scanner.manifest.num_files == num_files + 1


@pytest.mark.parametrize(
    ("num_touched", "seconds"), [(1, 0.001), (9, 0.001), (10, 0.01), (100, 0.05), (9999, 0.2)]
)
def test_the_more_is_touched_the_longer_it_has_to_be_quiet(
    num_touched: int, seconds: float
) -> None:
    assert quiet_seconds(num_touched) == seconds


def test_what_a_slow_writer_writes_is_few_bursts(following: Following, folder: Path) -> None:
    following.wait_until_equal()
    before = len(following.bursts)
    writer = (
        "import sys, time\n"
        "for number in range(400):\n"
        "    open(f'{sys.argv[1]}/new{number}.py', 'w').close()\n"
        "    print(time.monotonic())\n"
        "    time.sleep(0.02 if number % 10 == 0 else 0)\n"
    )
    command = [sys.executable, "-c", writer, folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    following.wait_until_equal()
    num_bursts = len(following.bursts) - before
    assert num_bursts <= 12 + num_long_pauses(list(map(float, done.stdout.split())))


def num_long_pauses(times: list[float]) -> int:
    """How many times the machine had a writer pause for longer than it meant to, and than a burst
    of so many files waits for more. One second ends a burst, whatever follows."""
    num, num_in_burst = 0, 0
    for last, this in itertools.pairwise(times):
        pause, num_in_burst = this - last, num_in_burst + 1
        is_long = pause > max(0.03, quiet_seconds(num_in_burst))
        num += is_long
        if is_long and pause > 1.0:
            num, num_in_burst = num + 12, 0
    return num


def test_a_queue_that_runs_over_is_noticed(asking: Asking, folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"1")
    asking.look()
    overflow(folder / "a", folder / "b")
    (folder / "unseen").mkdir()
    (folder / "unseen/c").write_bytes(b"1")
    assert asking.look() is None
    (folder / "unseen/d").write_bytes(b"1")
    assert asking.look() == {folder / "unseen/d"}


def test_a_queue_that_runs_over_is_noticed_while_following(folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"1")
    following = Following(Workspace({folder: ""}))
    try:
        following.wait_until_equal()
        watcher, going = following.watcher, threading.Event()
        wait_for_git = watcher._git.wait
        watcher._git.wait = lambda *args: going.wait(60) and wait_for_git(*args)  # type: ignore[method-assign]
        (folder / "a").write_bytes(b"2")  # The watcher is busy from here on.
        overflow(folder / "a", folder / "b")
        (folder / "unseen/deep").mkdir(parents=True)
        (folder / "unseen/deep/c").write_bytes(b"1")
        going.set()
        following.wait_until_equal()
    finally:
        following.close()


@pytest.mark.long_but(1)
def test_switching_branches_back_and_forth_is_all_followed(
    kind: str, following: Following, folder: Path
) -> None:
    (folder / ".git").mkdir()
    lock = folder / ".git/index.lock"
    for state in range(4):
        lock.write_bytes(b"")
        switch_branch(folder, state)
        lock.unlink()
        (folder / "touched").write_bytes(b"%d" % state)
        following.wait_until_equal()


def test_a_real_branch_switch_is_one_generation(folder: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)

    def commit(state: int) -> None:
        for i in range(400):
            (folder / f"p{i % 20}").mkdir(exist_ok=True)
            (folder / f"p{i % 20}" / f"{i}.py").write_text(f"{state}\n" * 200)
        git("add", "-A")
        git("commit", "-qm", str(state))

    git("init", "-q", "-b", "one")
    commit(1)
    git("checkout", "-q", "-b", "two")
    commit(2)
    following = Following(Workspace({folder: ""}))
    try:
        following.wait_until_equal()
        before = len(following.bursts)
        git("checkout", "-q", "one")
        following.wait_until_equal()
        changing = [burst for burst in following.bursts[before:] if len(burst) > 1]
        assert len(changing) == 1
        assert len(changing[0]) >= 400
    finally:
        following.close()


def test_git_is_waited_for_as_long_as_it_does_something(
    asking: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {folder / str(number) for number in range(100)}
    written: list[Path] = []
    # It goes by what has been written: that takes ten times as long as git may do nothing.
    clock = types.SimpleNamespace(monotonic=lambda: 1.0 * len(written))
    monkeypatch.setattr("monarch_sync.watching.git_locks.time", clock)
    (folder / ".git").mkdir()
    asking.look()
    lock = folder / ".git/index.lock"
    lock.write_bytes(b"")
    is_over = threading.Event()

    def check_out() -> None:
        for path in paths:
            path.write_bytes(b"1")
            written.append(path)
            is_over.wait(0.005)
        lock.unlink()

    thread = threading.Thread(target=check_out)
    thread.start()
    try:
        assert asking.watcher.changes() == paths
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "ask", [Watcher.changes, Watcher.settle, lambda watcher: next(iter(watcher))]
)
def test_a_checkout_that_has_begun_before_is_waited_for(
    kind: str, folder: Path, ask: Callable[[Watcher], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".git").mkdir()
    lock = folder / ".git/index.lock"
    lock.write_bytes(b"")
    is_looked_at = threading.Event()

    def note(work_tree: str) -> tuple[str, str] | None:
        is_looked_at.set()
        return find_git_dir(work_tree)

    monkeypatch.setattr("monarch_sync.watching.git_locks.find_git_dir", note)

    def check_out() -> None:
        is_looked_at.wait(10)
        (folder / "last").write_bytes(b"1")
        lock.unlink()

    thread = threading.Thread(target=check_out)
    thread.start()
    watcher = Watcher(Workspace({folder: ""}))
    try:
        ask(watcher)
        assert (folder / "last").exists()
    finally:
        is_looked_at.set()
        thread.join()
        watcher.close()


@pytest.mark.parametrize("where", [".", ".."])
def test_a_repository_that_begins_while_we_watch_is_waited_for_like_any_other(
    asking: Asking, folder: Path, where: str
) -> None:
    asking.look()
    lock = folder / where / ".git/index.lock"
    lock.parent.mkdir()
    assert asking.look() is None
    lock.write_bytes(b"")
    is_over = threading.Event()

    def check_out() -> None:
        is_over.wait(0.1)
        (folder / "last").write_bytes(b"1")
        lock.unlink()

    thread = threading.Thread(target=check_out)
    thread.start()
    try:
        assert asking.look() == {folder / "last"}
    finally:
        is_over.set()
        thread.join()


def test_a_git_lock_that_was_left_behind_holds_nobody_up_for_ever(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/index.lock").write_bytes(b"")
    locks = GitLocks(Workspace({folder: ""}), threading.Event(), idle_seconds=0.1)
    assert locks.wait()
    assert not locks.wait(), "waited for once is enough"


def test_a_call_costs_what_was_touched(asking: Asking, folder: Path) -> None:
    for i in range(50):
        (folder / f"d{i}").mkdir()
        (folder / f"d{i}/f").write_bytes(b"1")
    asking.look()
    assert asking.look() == set()
    (folder / "d7/f").write_bytes(b"2")
    assert asking.look() == {folder / "d7/f"}
    (folder / "d7").rename(folder / "e7")
    assert asking.look() == {folder / "d7", folder / "e7"}
    (folder / "e7/f").write_bytes(b"3")
    assert asking.look() == {folder / "e7/f"}
    assert asking.num_whole == 0


def test_the_cookie_leaves_no_trace(asking: Asking, folder: Path) -> None:
    before = folder.stat().st_mtime_ns, os.listdir(folder)
    for _ in range(3):
        assert asking.look() == set()
    assert (folder.stat().st_mtime_ns, os.listdir(folder)) == before


def test_where_no_temporary_file_can_be_made_the_cookie_is_in_the_folder(
    asking: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (folder / "a").write_bytes(b"1")
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    before = os.listdir(folder)
    assert asking.look() == {folder / "a"}
    assert os.listdir(folder) == before


def test_the_cookie_is_kept_from_call_to_call(asking: Asking, folder: Path) -> None:
    def cookies() -> list[str]:
        found = []
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return [name for name in found if "monarch-cookie" in name]

    assert cookies() == []
    for number in range(3):
        (folder / "a").write_bytes(b"%d" % number)
        assert asking.look() == {folder / "a"}
        assert len(cookies()) == 1
    asking.watcher.rest()
    assert cookies() == []


def test_without_the_cookie_nothing_is_proven(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    soon = functools.partial(LiveWatch, cookie_seconds=0.05)
    monkeypatch.setattr("monarch_sync.watching.watch.LiveWatch", soon)
    asking = Asking(Workspace({folder: ""}))
    request.addfinalizer(asking.watcher.close)
    assert asking.look() is None
    assert asking.look() == set()
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "read", lambda self: [])
        (folder / "a").write_bytes(b"1")
        assert asking.look() is None
    (folder / "a").write_bytes(b"2")
    assert asking.look() == {folder / "a"}


def test_a_folder_that_goes_once_the_watcher_has_answered_empties_no_host(
    asking: Asking, folder: Path
) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"1")
    asking.look()
    (folder / "a").write_bytes(b"2")
    touched = asking.watcher.changes()
    assert touched is not None
    shutil.rmtree(folder)
    with pytest.raises(WorkspaceMissing):
        asking.scanner.rescan(touched)
    folder.mkdir()
    (folder / "a").write_bytes(b"3")
    assert asking.look() is None


def test_what_git_tracks_although_ignored_is_watched(asking: Asking, folder: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    git("init", "-q")
    (folder / ".gitignore").write_text("out/\n")
    (folder / "out").mkdir()
    (folder / "out/kept").write_bytes(b"1")
    (folder / "a").write_bytes(b"1")
    asking.look()
    git("add", "a")
    assert asking.look() == set()  # What git tracks has changed, but not what belongs to us.
    git("add", "-f", "out/kept")
    assert asking.look() is None
    (folder / "out/kept").write_bytes(b"2")
    assert asking.look() == {folder / "out/kept"}
    git("rm", "-q", "-f", "--cached", "out/kept")
    assert asking.look() is None


def test_ignored_folders_are_not_watched(asking: Asking, folder: Path) -> None:
    (folder / ".gitignore").write_text("build/\n")
    asking.look()
    (folder / "build/deep").mkdir(parents=True)
    asking.look()
    (folder / "build/deep/x").write_bytes(b"1")
    (folder / "build/y").write_bytes(b"1")
    assert asking.look() == set()
    (folder / ".gitignore").write_text("")
    assert asking.look() is None
    (folder / "build/deep/x").write_bytes(b"2")
    assert asking.look() == {folder / "build/deep/x"}


def test_a_folder_that_is_no_virtual_environment_any_more(asking: Asking, folder: Path) -> None:
    (folder / "venv/lib").mkdir(parents=True)
    (folder / "venv/pyvenv.cfg").touch()
    asking.look()
    (folder / "venv/bin").mkdir()
    assert asking.look() is not None
    (folder / "venv/bin/deep").mkdir()
    assert asking.look() == set()  # It has no watch.
    (folder / "venv").rename(folder / "other")
    (folder / "other/share").mkdir()
    asking.look()
    (folder / "other/pyvenv.cfg").unlink()
    assert asking.look() is None
    (folder / "other/lib/a").touch()
    assert asking.look() == {folder / "other/lib/a"}


def test_a_virtual_environment_takes_the_place_of_a_folder(asking: Asking, folder: Path) -> None:
    (folder / "env").mkdir()
    (folder / "new").mkdir()
    (folder / "new/pyvenv.cfg").touch()
    asking.look()
    (folder / "new").rename(folder / "env")
    (folder / "env/a.py").touch()
    asking.look()


def test_rules_outside_of_the_folder_count(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/a.log").write_bytes(b"1")
    asking = Asking(Workspace({folder / "sub": ""}))
    asking.look()
    (folder / ".gitignore").write_text("*.log\n")
    assert asking.look() is None
    asking.watcher.close()


def test_a_tree_that_is_deleted_and_made_again(asking: Asking, folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    asking.look()
    shutil.rmtree(folder)
    with pytest.raises(WorkspaceMissing):
        asking.watcher.changes()
    folder.mkdir()
    (folder / "b").write_bytes(b"1")
    assert asking.look() is None
    (folder / "b").write_bytes(b"2")
    assert asking.look() == {folder / "b"}


def test_a_tree_that_is_deleted_and_made_again_is_followed(
    kind: str, following: Following, folder: Path
) -> None:
    for content in (b"1", b"2"):
        shutil.rmtree(folder)
        (folder / "sub/deep").mkdir(parents=True)
        (folder / "sub/deep/a").write_bytes(content)
        following.wait_until_equal()
        (folder / "sub/deep/a").write_bytes(content * 2)
        following.wait_until_equal()


def test_another_tree_in_the_same_place(asking: Asking, folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    (other / "b").write_bytes(b"1")
    folder.rename(folder.with_name("old"))
    other.rename(folder)
    assert asking.look() is None


def test_a_folder_becomes_a_link_and_back(asking: Asking, folder: Path) -> None:
    (folder / "real/deep").mkdir(parents=True)
    (folder / "real/deep/x").write_bytes(b"1")
    (folder / "d").mkdir()
    (folder / "d/y").write_bytes(b"1")
    asking.look()
    shutil.rmtree(folder / "d")
    (folder / "d").symlink_to("real")
    asking.look()
    (folder / "d/deep/x").write_bytes(b"2")
    asking.look()
    (folder / "d").unlink()
    (folder / "real").rename(folder / "d")
    asking.look()
    (folder / "d/deep/x").write_bytes(b"3")
    assert asking.look() == {folder / "d/deep/x"}
    assert asking.num_whole == 0


def test_a_folder_that_is_moved_out_is_watched_no_more(asking: Asking, folder: Path) -> None:
    (folder / "d/deep").mkdir(parents=True)
    asking.look()
    outside = folder.with_name("outside")
    (folder / "d").rename(outside)
    asking.look()
    (outside / "deep/x").write_bytes(b"1")
    assert asking.look() == set()
    outside.rename(folder / "back")
    asking.look()
    (folder / "back/deep/x").write_bytes(b"2")
    assert asking.look() == {folder / "back/deep/x"}


def test_two_folders_one_inside_the_other(folder: Path) -> None:
    (folder / "inner/deep").mkdir(parents=True)
    (folder / "inner/deep/x").write_bytes(b"1")
    asking = Asking(Workspace({folder: "all", folder / "inner": "part"}))
    asking.look()
    (folder / "inner/deep/x").write_bytes(b"2")
    (folder / "y").write_bytes(b"1")
    assert asking.look() == {folder / "inner/deep/x", folder / "y"}
    asking.watcher.close()


@pytest.mark.parametrize("why", ["the file system", "no inotify watches"])
def test_where_events_do_not_tell_all_everything_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no inotify watches":

        def refuse(self: Inotify, path: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Inotify, "watch", refuse)
    else:
        monkeypatch.setattr("monarch_sync.watching.cover.tells_all", lambda path: False)
    asking = Asking(Workspace({folder: ""}))
    for content in (b"1", b"2"):
        (folder / "a").write_bytes(content)
        assert asking.look() is None
    assert why in asking.watcher.polls_because
    following = Following(Workspace({folder: ""}))
    try:
        for content in (b"3", b"4"):
            (folder / "a").write_bytes(content)
            following.wait_until_equal()
        assert not any(following.bursts)
    finally:
        following.close()


def test_watchfiles_names_what_was_saved_and_what_it_does_not_name_is_found(
    following: Following, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.close()
    monkeypatch.setattr("monarch_sync.watching.watch.is_there", lambda: False)
    asking = Asking(Workspace({folder: ""}))
    assert asking.look() is None
    assert asking.look() is None  # It vouches for nothing.
    named = Following(Workspace({folder: ""}))
    try:
        named.wait_until_equal()
        wait_for(lambda: len(named.bursts) > 1, what="the first look")
        (folder / "first").write_bytes(b"2")
        wait_for(lambda: {folder / "first"} in named.bursts, what="the save")
        assert named.watcher.polls_because == ""
        (folder / ".git").mkdir()
        (folder / ".git/config").write_bytes(b"")
        (folder / "__pycache__").mkdir()
    finally:
        named.close()
    assert not any("__pycache__" in str(path) for burst in named.bursts for path in burst)

    # It loses everything from here on.
    def silent(*roots: str, **options: Any) -> Iterator[set[Any]]:
        while not options["stop_event"].wait(0.01):
            yield set()

    monkeypatch.setattr("monarch_sync.watching.system_watch.watch", silent)
    lost = Following(Workspace({folder: ""}))
    try:
        for content in (b"3", b"4"):
            lost.wait_until_equal()
            (folder / "first").write_bytes(content)
            lost.wait_until_equal()
    finally:
        lost.close()
    assert not any(lost.bursts)


def test_a_system_that_tells_nothing_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*roots: str, **options: Any) -> Iterator[set[Any]]:
        raise OSError("no events here")

    monkeypatch.setattr("monarch_sync.watching.watch.is_there", lambda: False)
    monkeypatch.setattr("monarch_sync.watching.system_watch.watch", refuse)
    following = Following(Workspace({folder: ""}))
    try:
        (folder / "a").write_bytes(b"1")
        following.wait_until_equal()
        wait_for(lambda: following.watcher.polls_because == "no events here")
        (folder / "a").write_bytes(b"2")
        following.wait_until_equal()
    finally:
        following.close()


def test_a_file_that_is_being_written_is_waited_for(following: Following, folder: Path) -> None:
    path = folder / "model.py"
    with open(path, "wb") as file:
        file.write(b"half")
        file.flush()
        (folder / "other").write_bytes(b"1")
        deadline = time.monotonic() + 10
        while not any(folder / "other" in burst for burst in following.bursts):
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)
        seen_half = any(path in burst for burst in following.bursts)
        file.write(b" and whole")
    following.wait_until_equal()
    # On a machine that stood still for a second, half a file is all there was to see.
    assert not seen_half or time.monotonic() > deadline - 9


def test_a_forked_child_takes_no_events(asking: Asking, folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold nothing of ours
        pid = os.fork()
    if pid == 0:
        os._exit(0 if asking.watcher.changes() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert asking.look() == {folder / "a"}


def test_a_watch_that_is_closed_gives_everything_back(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watcher = Watcher(Workspace({folder: ""}))
    watcher.changes()
    watcher.changes()
    watcher.rest()
    assert len(os.listdir("/proc/self/fd")) == before
    watcher.changes()
    watcher.close()
    assert watcher.changes() is None
    assert list(watcher) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_watches_are_not_kept_for_what_is_gone(folder: Path) -> None:
    live = LiveWatch(Workspace({folder: ""}))
    for i in range(20):
        (folder / f"d{i}/deep").mkdir(parents=True)
        assert live.catch_up()
        shutil.rmtree(folder / f"d{i}")
        assert live.catch_up()
    assert len(live.folders) == 1
    live.close()
