"""The whole way: folders, author, messages, replica, report; and the watcher that starts it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from monarch_sync import (
    HostReport,
    HostView,
    MovedUnderfoot,
    Problem,
    Push,
    PushRefused,
    Replica,
    Scanner,
    SyncFailed,
    SyncReport,
    WatchEnded,
    Watcher,
    Workspace,
    WorkspaceMissing,
    sync_local,
)
from monarch_sync.messages import Refused, StageRequest
from monarch_sync.tree import manifest as manifest_module
from monarch_sync.tree.tree import TreeNode
from tests.sync.author import Author
from tests.sync.trees import push_tree, read_tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    (folder / "pkg/b.py").write_text("2")
    return folder


def test_the_usual_edit_is_one_message_with_one_file(folder: Path, replica: Replica) -> None:
    author = Author(folder, replica)
    author.push()
    author.num_messages = 0
    (folder / "a.py").write_text("three")
    push = author.push()
    assert (author.num_messages, push.bytes_sent) == (1, 5)
    assert (replica.root / "a.py").read_text() == "three"


def test_a_host_that_said_it_is_empty_is_not_asked(folder: Path, replica: Replica) -> None:
    author = Author(folder, replica)
    author.view.is_empty = True
    push = author.push()
    assert author.num_messages == 1
    assert push.bytes_sent == 2
    assert read_tree(replica.root) == read_tree(folder)
    (folder / "a.py").rename(folder / "c.py")
    assert author.push().bytes_sent == 0


def test_an_empty_host_asks_for_much(
    folder: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_sync.push.MAX_UNASKED_BYTES", 1)
    author = Author(folder, replica)
    author.view.is_empty = True
    author.push()
    assert author.num_messages == 2
    assert read_tree(replica.root) == read_tree(folder)


def test_a_host_that_is_not_as_empty_as_it_said_keeps_what_it_has(
    folder: Path, replica: Replica
) -> None:
    push_tree(replica, 1, {"a.py": b"1", "old": b"1"})
    author = Author(folder, replica)
    author.view.is_empty = True
    author.push()
    assert read_tree(replica.root) == read_tree(folder)


def test_an_edit_is_not_looked_for_all_over_the_tree(
    folder: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs does not grow with the number of folders."""
    author = Author(folder, replica)
    author.push()
    looked_for: list[bytes] = []
    real = manifest_module.paths_of

    def paths_of(root: TreeNode, digests: Iterable[bytes]) -> dict[bytes, str]:
        found = list(digests)
        looked_for.extend(found)
        return real(root, found)

    monkeypatch.setattr(manifest_module, "paths_of", paths_of)
    (folder / "pkg/b.py").write_text("edited")
    author.push([folder / "pkg/b.py"])
    assert looked_for == []
    (folder / "pkg/new").write_text("1")  # which the host has, at another place
    assert author.push([folder / "pkg/new"]).bytes_sent == 0
    assert looked_for
    assert read_tree(replica.root) == read_tree(folder)


def test_a_rename_sends_no_content(folder: Path, replica: Replica) -> None:
    author = Author(folder, replica)
    author.push()
    (folder / "pkg").rename(folder / "renamed")
    push = author.push()
    assert push.bytes_sent == 0
    assert push.staged is not None
    assert push.staged.num_moved == 1
    assert read_tree(replica.root) == read_tree(folder)


def test_a_host_that_starts_anew_gets_the_whole(
    folder: Path, replica: Replica, tmp_path: Path
) -> None:
    author = Author(folder, replica)
    author.push()
    author.replica = Replica(tmp_path / "another")
    author.push()
    assert read_tree(author.replica.root) == read_tree(folder)
    author.replica.close()


def test_another_author_in_between_is_replaced(folder: Path, replica: Replica) -> None:
    author = Author(folder, replica)
    author.push()
    push_tree(replica, replica.generation + 1, {"theirs": b"1"})
    author.push()
    assert read_tree(replica.root) == read_tree(folder)


def test_a_file_that_moves_underfoot_stops_the_push(folder: Path) -> None:
    workspace = Workspace({folder: ""})
    manifest = Scanner(workspace).scan().manifest
    push = Push(workspace, manifest, HostView(), 1)
    step = push.first()
    assert isinstance(step.message, StageRequest)
    (folder / "a.py").write_text("other")
    wanted = [entry.digest for entry in manifest if entry.is_file]
    from monarch_sync.messages import Need

    with pytest.raises(MovedUnderfoot, match=r"a\.py"):
        push.receive(Need(wanted))


def test_a_refusal_reaches_the_author(folder: Path) -> None:
    workspace = Workspace({folder: ""})
    push = Push(workspace, Scanner(workspace).scan().manifest, HostView(), 1)
    push.first()
    with pytest.raises(PushRefused, match="disk is full") as caught:
        push.receive(Refused("disk", "the disk is full", "a.py"))
    assert (caught.value.code, caught.value.path) == ("disk", "a.py")
    with pytest.raises(PushRefused):
        push.committed(Refused("not-staged", "nothing here"))


def test_a_sync_in_one_process(folder: Path, replica: Replica) -> None:
    (folder / "out").symlink_to(folder.parent)
    report = sync_local(Workspace({folder: ""}), replica)
    assert report.ok
    assert (report.generation, len(report.changed_files), report.bytes_sent) == (1, 2, 2)
    assert [problem.path for problem in report.problems] == ["out"]
    again = sync_local(Workspace({folder: ""}), replica)
    assert (again.changed_files, again.bytes_sent, again.digest) == ([], 0, report.digest)
    with pytest.raises(ValueError, match="no folders"):
        sync_local(Workspace(), replica)
    assert replica.manifest.digest.hex() == report.digest


def test_what_changes_beside_files_is_counted(folder: Path, replica: Replica) -> None:
    def push() -> SyncReport:
        return sync_local(Workspace({folder: ""}), replica)

    def said() -> str:
        return push().one_line().split("  ")[1].partition(" →")[0]

    (folder / "deep/inner").mkdir(parents=True)
    (folder / "link").symlink_to("a.py")
    assert said() == "2 files, 1 link, 1 folder"
    (folder / "link").unlink()
    (folder / "deep/inner").rmdir()
    assert said() == "1 link, 1 folder", "the one around it stays"
    (folder / "deep").chmod(0o700)
    (folder / "a.py").chmod(0o600)
    report = push()
    assert report.one_line().startswith("✓ gen 3  2 modes → 1 host")
    assert report.is_change
    assert report.table().splitlines()[1].split()[-2:] == ["modes", "sent"]
    assert said() == "0 files"
    assert not push().is_change
    (folder / "deep").rmdir()
    (folder / "deep").symlink_to("a.py")
    (folder / "a.py").unlink()
    (folder / "a.py").mkdir()
    assert said() == "1 link, 1 folder", "what stood there before has given way"


def test_a_report_in_one_line_and_in_full() -> None:
    report = SyncReport(
        generation=42,
        digest="ab" * 16,
        hosts=[HostReport(f"host{i}", num_written=3, bytes_sent=1200) for i in range(16)],
        changed_files=["model.py", "loss.py", "data.txt"],
        seconds=0.0381,
        modules_reloaded=["model.py", "loss.py"],
        actors_patched={"Trainer": 128},
        problems=[Problem("pipe", "is no file")],
    )
    line = report.one_line()
    assert line == (
        "✓ gen 42  3 files → 16 hosts  38 ms  data.txt  reloaded model.py, loss.py  "
        "patched Trainer×128"
    )
    assert str(report).startswith(line)
    assert "left out pipe: is no file" in str(report)
    report.raise_for_errors()


@pytest.mark.parametrize(
    ("changed", "deleted", "expected"),
    [
        (["README.md"], [], "1 file → 1 host  0 ms  README.md"),
        (["a/m.py", "b/m.py"], ["a/m.py"], "moved a/m.py to b/m.py"),
        (["old.py"], ["old.py"], "1 file deleted → 1 host  0 ms  deleted old.py"),
        (["old.py", "new.py"], ["old.py"], "deleted old.py  new.py"),
        (["1", "2", "3", "4"], [], "4 files → 1 host  0 ms"),
    ],
)
def test_what_was_pushed_is_named_up_to_three_files(
    changed: list[str], deleted: list[str], expected: str
) -> None:
    report = SyncReport(
        generation=2, hosts=[HostReport("a")], changed_files=changed, deleted_files=deleted
    )
    assert report.one_line().endswith(expected)
    assert "4 files" in expected or changed[-1] not in report.one_line(width=26)


def test_no_name_in_a_report_steers_the_terminal() -> None:
    name = "a\x1b[2J\udcff.py"
    report = SyncReport(
        generation=1, changed_files=[name], modules_reloaded=[name], actors_patched={name: 1},
        needs_respawn=[f"{name}: its slots changed"], actors_respawned={name: 1},
        procs_respawned=[name], problems=[Problem(name, "is a pipe")],
        hosts=[HostReport("here", kept=[name])],
    )  # fmt: skip
    text = f"{report}{report.one_line()}"
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b" in text


def test_a_failed_report_raises_on_request() -> None:
    report = SyncReport(generation=41, errors=["host3: model.py:7 SyntaxError"])
    assert not report.ok
    assert "still on gen 41" in report.one_line()
    with pytest.raises(SyncFailed, match="SyntaxError"):
        report.raise_for_errors()


class Watching:
    """A watcher on a thread, with all that it has reported."""

    def __init__(self, workspace: Workspace, gone_seconds: float = 600.0) -> None:
        self.watcher = Watcher(workspace, gone_seconds=gone_seconds)
        self.touched: list[set[Path]] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for touched in self.watcher:
                self.touched.append(touched)
        except WatchEnded as error:
            self.error = error

    def has_seen(self, path: Path) -> bool:
        return any(path in touched for touched in self.touched)

    def close(self) -> None:
        self.watcher.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


def wait_until(condition: Callable[[], bool], act: Callable[[], object] = lambda: None) -> None:
    """Act until a condition holds: a watch begins at a moment that nobody tells."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        act()
        threading.Event().wait(0.02)


@pytest.fixture
def watching(folder: Path) -> Iterator[Watching]:
    watching = Watching(Workspace({folder: ""}))
    first = folder / "first"
    wait_until(lambda: watching.has_seen(first), lambda: first.write_text("1"))
    watching.touched.clear()
    yield watching
    watching.close()


def test_a_save_is_seen(watching: Watching, folder: Path) -> None:
    (folder / "a.py").write_text("edited")
    wait_until(lambda: watching.has_seen(folder / "a.py"))


def test_noise_is_not(watching: Watching, folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/a.pyc").write_text("1")
    (folder / "a.py").write_text("edited")
    wait_until(lambda: watching.has_seen(folder / "a.py"))
    assert not any("__pycache__" in path.parts for seen in watching.touched for path in seen)


def test_what_is_written_into_new_folders_is_found(watching: Watching, folder: Path) -> None:
    scanner = Scanner(Workspace({folder: ""}))
    scanner.scan()
    (folder / "new/deep/deeper").mkdir(parents=True)
    for i in range(20):
        (folder / "new/deep/deeper" / str(i)).write_text("1")

    def rescan() -> bool:
        while watching.touched:
            touched = watching.touched.pop(0)
            scanner.rescan(touched) if touched else scanner.scan()
        assert scanner.manifest is not None
        return len(scanner.manifest.below("new/deep/deeper")) == 20

    wait_until(rescan)


def test_git_is_waited_for(watching: Watching, folder: Path) -> None:
    (folder / ".git").mkdir()
    wait_until(lambda: set() in watching.touched)  # new rules: a look at everything
    (folder / ".git/index.lock").write_text("")
    (folder / "a.py").write_text("half")
    (folder / "__pycache__").mkdir()
    threading.Event().wait(0.1)  # long enough for many steps of the watcher
    assert not watching.has_seen(folder / "a.py")
    (folder / ".git/index.lock").unlink()
    wait_until(lambda: watching.has_seen(folder / "a.py"))


def test_a_deleted_folder_is_waited_for(watching: Watching, folder: Path) -> None:
    folder.rename(folder.with_name("gone"))
    wait_until(lambda: set() in watching.touched)
    watching.touched.clear()
    folder.mkdir()
    wait_until(lambda: set() in watching.touched)
    (folder / "a.py").write_text("1")
    wait_until(lambda: watching.has_seen(folder / "a.py"))


def test_a_folder_that_stays_away_ends_the_watch(folder: Path) -> None:
    watching = Watching(Workspace({folder: ""}), gone_seconds=0.0)
    wait_until(lambda: set() in watching.touched)
    folder.rename(folder.with_name("gone"))
    wait_until(lambda: watching.error is not None)
    watching.close()
    assert isinstance(watching.error, WatchEnded)
    assert watching.error.folder == str(folder)


def test_a_missing_folder_is_not_watched(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceMissing):
        Watcher(Workspace([tmp_path / "nowhere"]))
