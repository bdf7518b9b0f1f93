"""A first state that comes in instalments, while the author still looks at the rest of it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from monarch_sync import HostView, Instalments, Outgoing, Push, Replica, Scanner, Workspace
from monarch_sync.content.digest import digest_bytes
from monarch_sync.messages import (
    Abort,
    Blob,
    Commit,
    Instalment,
    Message,
    Need,
    Refused,
    Staged,
    StageRequest,
    decode,
    encode,
)
from monarch_sync.tree.entry import Entry, EntryKind, Row
from tests.sync.test_sync_crash import FailingDisk, Stopped
from tests.sync.test_sync_scan import git
from tests.sync.trees import Tree, plant, push_tree, read_tree, trees


class Author:
    """Looks at a folder, and sends one host what it finds; a bit at a time, here."""

    def __init__(
        self, folder: Path, replica: Replica, view: HostView | None = None, at: str = ""
    ) -> None:
        self.workspace = Workspace({folder: at})
        self.scanner = Scanner(self.workspace)
        self.view = view or HostView(is_empty=True)
        self.replica = replica
        self.sent: list[Message] = []
        self.replies: list[Message] = []

    def look(self) -> Push:
        """All but the push itself."""

        def send(out: Outgoing) -> None:
            self.carry(out)

        instalments = Instalments(self.scanner.contents, [self.view], 1, send, part_bytes=1)
        scan = self.scanner.scan(instalments.add)
        instalments.end(scan.manifest)
        return Push(self.workspace, scan.manifest, self.view, 1, self.scanner.contents)

    def carry(self, out: Outgoing) -> Message:
        self.sent.append(out.message)
        blobs = [bytes(blob) for blob in out.blobs]
        self.replies.append(decode(encode(self.replica.handle(decode(encode(out.message)), blobs))))
        return self.replies[-1]

    def go_on(self, push: Push) -> Push:
        step = push.first()
        while isinstance(step, Outgoing):
            step = push.receive(self.carry(step))
        push.committed(self.replica.handle(Commit(1)))
        self.replica.settle()
        return push

    @property
    def steps(self) -> list[str]:
        return [type(message).__name__ for message in self.sent]


@pytest.fixture
def author(folder: Path, replica: Replica) -> Author:
    plant(folder, {"a": b"1", "pkg/b": b"22", "pkg/inner/c": b"4444", "pkg/link": "b", "z": b""})
    return Author(folder, replica)


def test_the_stage_brings_no_byte_again(author: Author, folder: Path) -> None:
    push = author.look()
    assert read_tree(author.replica.root) == {}
    author.go_on(push)
    assert read_tree(author.replica.root) == read_tree(folder)
    *parts, stage = author.sent
    assert len(parts) > 1
    assert {type(part) for part in parts} == {Instalment}
    assert isinstance(stage, StageRequest)
    assert stage.blobs == []
    assert {type(reply) for reply in author.replies[:-1]} == {Need}
    assert push.bytes_sent == 7 + sum(len(encode(part)) for part in parts)
    assert author.view.held == set()


def test_new_folders_are_put_together_beside_and_shown_whole(author: Author) -> None:
    author.go_on(author.look())
    assert [p.name for p in (author.replica.state_folder / "stage").iterdir()] == []
    assert author.replica.generation == 1


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=trees, then=trees, theirs=trees)
@pytest.mark.long
def test_whatever_becomes_of_it_meanwhile(first: Tree, then: Tree, theirs: Tree) -> None:
    """The author's folder becomes another tree after the look; the host has files of its own."""
    for at in ("", "x/y"):
        with tempfile.TemporaryDirectory() as where:
            folder, root = Path(where, "project"), Path(where, "replica")
            plant(root, theirs)
            plant(folder, first)
            author = Author(folder, Replica(root), at=at)
            author.look()
            plant(folder, then)
            scan = author.scanner.scan()
            if not scan.problems:
                contents = author.scanner.contents
                author.go_on(Push(author.workspace, scan.manifest, author.view, 1, contents))
                now = read_tree(root / at)
                assert now == {**now, **read_tree(folder)}
                author.replica.close()
                again = Replica(root)
                assert again.manifest == scan.manifest
                again.close()
            author.replica.close()


def test_what_changed_since_is_asked_for(author: Author, folder: Path) -> None:
    author.look()
    (folder / "a").write_text("new")
    scan = author.scanner.scan()
    author.go_on(Push(author.workspace, scan.manifest, author.view, 1, author.scanner.contents))
    assert author.steps[-2:] == ["StageRequest", "Supply"]
    assert read_tree(author.replica.root) == read_tree(folder)


def test_a_host_that_was_started_again_asks_for_all(author: Author, folder: Path) -> None:
    push = author.look()
    author.replica.close()
    author.replica = Replica(author.replica.root)
    author.go_on(push)
    assert author.steps[-2:] == ["StageRequest", "Supply"]
    assert read_tree(author.replica.root) == read_tree(folder)
    author.replica.close()


def test_a_host_whose_folder_went_meanwhile_gets_it_again(author: Author, folder: Path) -> None:
    push = author.look()
    shutil.rmtree(author.replica.root)
    author.go_on(push)
    assert read_tree(author.replica.root) == read_tree(folder)


def test_a_host_that_has_something_takes_nothing_in(author: Author, folder: Path) -> None:
    assert push_tree(author.replica, 1, {"a": b"old"}) is not None
    push = author.look()
    assert read_tree(author.replica.root) == {"a": b"old"}
    assert isinstance(author.carry(push.first()), Refused)  # the same number: it is stale
    another = HostView()
    push = Push(author.workspace, author.scanner.scan().manifest, another, 2)
    step = push.first()
    while isinstance(step, Outgoing):
        step = push.receive(author.carry(step))
    push.committed(author.replica.handle(Commit(2)))
    assert read_tree(author.replica.root) == read_tree(folder)


def test_it_does_not_disturb_what_is_staged(author: Author, folder: Path) -> None:
    content = b"staged"
    entry = Entry("s", EntryKind.FILE, 0o644, len(content), digest_bytes(content))
    push = author.look()
    staged = author.carry(push.first())
    assert isinstance(staged, Staged)
    late = Instalment(1, "me", [entry.to_row()], [Blob(entry.digest, len(content))])
    assert isinstance(author.replica.handle(late, [content]), Need)
    author.replica.handle(Commit(1))
    assert read_tree(author.replica.root) == read_tree(folder)


def test_another_push_throws_it_away(author: Author, folder: Path) -> None:
    author.look()
    assert push_tree(author.replica, 2, {"b": b"theirs", "pkg/b": b"22"}) is not None
    assert read_tree(author.replica.root) == {"b": b"theirs", "pkg": None, "pkg/b": b"22"}
    assert [p.name for p in (author.replica.state_folder / "stage").iterdir()] == []


@pytest.mark.parametrize("number", [1, 2])
def test_an_abort_throws_it_away(author: Author, number: int) -> None:
    author.look()
    author.replica.handle(Abort(number))
    left = list((author.replica.state_folder / "stage").iterdir())
    assert bool(left) == (number != 1)


@pytest.mark.parametrize(
    "bad",
    [
        (b"../out", "file", 0o644, 3, digest_bytes(b"bad"), b"", ()),
        (b"/etc/x", "file", 0o644, 3, digest_bytes(b"bad"), b"", ()),
        (b"pkg/../../x", "dir", 0o755, 0, b"", b"", ()),
        (b".x.monarch/y", "file", 0o644, 3, digest_bytes(b"bad"), b"", ()),
        (b"setuid", "file", 0o4755, 3, digest_bytes(b"bad"), b"", ()),
    ],
)
def test_names_that_lead_out_are_refused(author: Author, tmp_path: Path, bad: Row) -> None:
    before = sorted(os.listdir(tmp_path))
    part = Instalment(1, "me", [bad], [Blob(digest_bytes(b"bad"), 3)])
    reply = author.replica.handle(part, [b"bad"])
    assert isinstance(reply, Refused)
    assert reply.code == "bad-manifest"
    assert sorted(os.listdir(tmp_path)) == before
    assert list((author.replica.state_folder / "stage").iterdir()) == []


def test_a_content_that_is_another_is_refused(author: Author, folder: Path) -> None:
    entry = Entry("s", EntryKind.FILE, 0o644, 3, digest_bytes(b"one"))
    part = Instalment(1, "me", [entry.to_row()], [Blob(entry.digest, 3)])
    reply = author.replica.handle(part, [b"two"])
    assert isinstance(reply, Refused)
    assert reply.code == "damaged"
    author.go_on(author.look())
    assert read_tree(author.replica.root) == read_tree(folder)


def test_a_folder_that_is_told_twice_loses_no_file(replica: Replica) -> None:
    folder = Entry("d", EntryKind.DIR, 0o755)
    file = Entry("d/x", EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))
    rows = [folder.to_row(), file.to_row(), folder.to_row()]
    for part in (rows, rows[:1]):  # and again, in a second one
        replica.handle(Instalment(1, "me", part, [Blob(file.digest, 1)]), [b"1"])
    push_tree(replica, 1, {"d/x": b"1"})
    assert read_tree(replica.root) == {"d": None, "d/x": b"1"}


def test_what_is_in_no_folder_that_is_known_is_not_taken(replica: Replica) -> None:
    file = Entry("d/x", EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))
    no_folder = Entry("d", EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))
    for rows in ([file.to_row()], [no_folder.to_row(), file.to_row()]):
        part = Instalment(1, "me", rows, [Blob(file.digest, 1)])
        assert replica.handle(part, [b"1"]) == Need([file.digest])
    push_tree(replica, 1, {"d/x": b"1"})
    assert read_tree(replica.root) == {"d": None, "d/x": b"1"}


def test_a_content_that_several_files_have_comes_to_all(author: Author, folder: Path) -> None:
    plant(folder, {f"pkg{i}/{name}": b"same" for i in range(4) for name in ("a", "b")})
    author.go_on(author.look())
    assert "Supply" not in author.steps
    assert read_tree(author.replica.root) == read_tree(folder)


def test_more_than_is_sent_unasked_is_asked_for(
    author: Author, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("instalments", "push"):
        monkeypatch.setattr(f"monarch_sync.{module}.MAX_UNASKED_BYTES", 5)
    plant(folder, {f"{i}": b"%04d" % i for i in range(8)})
    author.go_on(author.look())
    assert author.steps == ["Instalment"] * 2 + ["StageRequest", "Supply"]
    assert read_tree(author.replica.root) == read_tree(folder)


def test_a_host_that_has_not_kept_it_gets_all_with_the_stage(author: Author, folder: Path) -> None:
    push = author.look()
    author.replica.handle(Abort(1))
    Instalments.answered(author.view, Need([b"x"]))
    push = Push(author.workspace, author.scanner.scan().manifest, author.view, 1)
    author.go_on(push)
    assert author.steps[-1] == "StageRequest"
    assert read_tree(author.replica.root) == read_tree(folder)


def test_large_files_come_after_it(
    author: Author, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_sync.instalments.LARGE_BYTES", 4)
    plant(folder, {"large": b"12345", "small": b"1"})
    author.go_on(author.look())
    assert read_tree(author.replica.root) == read_tree(folder)
    assert author.steps == ["Instalment", "StageRequest"]


def test_a_full_disk_in_the_middle_is_told_by_the_stage(folder: Path, tmp_path: Path) -> None:
    plant(folder, {f"pkg{i}/a": b"%04d" % i for i in range(5)})
    disk = FailingDisk()
    author = Author(folder, Replica(tmp_path / "replica", disk))
    disk.arm(5, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    push = author.look()
    assert [r.code for r in author.replies if isinstance(r, Refused)] == ["disk"]
    author.go_on(push)  # there is room again
    assert read_tree(author.replica.root) == read_tree(folder)
    author.replica.close()


def test_parts_that_come_after_a_lost_one_do_no_harm(folder: Path, replica: Replica) -> None:
    """A host that failed to take one has thrown away all that came before it."""
    plant(folder, {f"pkg{i}/{j}": b"%d%d" % (i, j) for i in range(4) for j in range(2)})
    author = Author(folder, replica)
    carry = author.carry

    def lose_some(out: Outgoing) -> Message:
        if len(author.sent) == 2:
            replica.handle(Abort(1))
        return carry(out)

    author.carry = lose_some  # type: ignore[method-assign]
    author.go_on(author.look())
    assert read_tree(replica.root) == read_tree(folder)


def _crash_at(step: int, folder: Path, root: Path) -> bool:
    """Stop a first push at a step, start again, and push. Whether it ran to its end instead."""
    disk = FailingDisk()
    author = Author(folder, Replica(root, disk))
    disk.arm(step, Stopped())
    ended = True
    try:
        author.go_on(author.look())
    except Stopped:
        ended = False
    author.replica.close()
    replica = Replica(root)
    assert read_tree(root) == ({} if replica.generation == 0 else read_tree(folder))
    if not replica.generation:
        again = Author(folder, replica)
        again.go_on(again.look())
    assert read_tree(root) == read_tree(folder)
    replica.close()
    return ended


def test_a_crash_at_any_step_leaves_nothing_or_all(tmp_path: Path, folder: Path) -> None:
    plant(folder, {"a": b"1", "pkg/b": b"22", "pkg/inner/c": b"4444", "pkg/link": "b", "z": b""})
    for step in range(200):
        if _crash_at(step, folder, tmp_path / str(step)):
            return
    pytest.fail("a push of a few files took more than 200 steps")


@pytest.mark.parametrize("at", ["", "x", "x/y"])
def test_the_scan_tells_of_all_that_it_finds_folders_first(folder: Path, at: str) -> None:
    plant(folder, {"a": b"1", "pkg/b": b"22", "pkg/link": "b", "none": None, "x.pyc": b"no"})
    plant(folder / "build", {f"{name}/deep/x": b"1" for name in "cab"})  # tracked, and ignored
    (folder / ".gitignore").write_text("build\n")
    git(folder, "init", "-q")
    git(folder, "add", "-f", "build")
    found: list[Entry] = []
    tell: Callable[[Entry], None] = found.append
    scan = Scanner(Workspace({folder: at})).scan(tell)
    assert sorted(found, key=lambda entry: entry.path) == list(scan.manifest)
    seen = {""}
    for entry in found:
        assert entry.path.rpartition("/")[0] in seen
        seen.add(entry.path)
