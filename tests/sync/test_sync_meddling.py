"""What others do to a replica's files in the middle of a push: seen, kept, and never believed."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_sync import Outgoing, Push, Replica
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.content.disk import AnyPath, Disk
from monarch_sync.messages import AskMissing, Commit, Committed, Need, Refused, Staged
from tests.sync.author import Author
from tests.sync.test_sync_bad_input import as_nobody
from tests.sync.trees import Tree, manifest_of, push_tree, read_tree, stage_message

LONG_AGO = 1_600_000_000
LARGE = random.Random(1).randbytes(LARGE_BYTES + 1000)
EDITED = LARGE[:5_000_000] + b"edit" + LARGE[5_000_004:]


def stage(replica: Replica, generation: int, tree: Tree) -> None:
    contents = [what for what in tree.values() if isinstance(what, bytes)]
    message = stage_message(generation, manifest_of(tree), contents)
    assert isinstance(replica.handle(message, contents), Staged)


def commit(replica: Replica, generation: int) -> None:
    assert isinstance(replica.handle(Commit(generation)), Committed)


def go_back(replica: Replica, generation: int, tree: Tree) -> None:
    """To a state whose contents are all on the host."""
    reply = replica.handle(stage_message(generation, manifest_of(tree), []))
    if isinstance(reply, Need):
        push_tree(replica, generation, tree)
    else:
        commit(replica, generation)


def kept(replica: Replica) -> list[bytes]:
    return [path.read_bytes() for path in replica.root.rglob("*.host-*")]


def stage_by(author: Author) -> Push:
    replica = author.replica
    manifest = author.scanner.scan().manifest
    number = replica.generation + 1
    push = Push(author.workspace, manifest, author.view, number, author.scanner.contents)
    step: object = push.first()
    while isinstance(step, Outgoing):
        step = push.receive(replica.handle(step.message, step.blobs))
    return push


def test_an_old_file_that_takes_the_place_of_ours_before_we_settle_is_not_taken_for_it(
    replica: Replica, tmp_path: Path
) -> None:
    push_tree(replica, 1, {"a": b"1"})
    stage(replica, 2, {"a": b"2"})
    commit(replica, 2)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x")
    os.utime(theirs, (LONG_AGO, LONG_AGO))
    theirs.rename(replica.root / "a")
    replica.settle()
    push_tree(replica, 3, {"a": b"3"})
    assert kept(replica) == [b"x"]
    go_back(replica, 4, {"a": b"2"})
    assert read_tree(replica.root)["a"] == b"2"


def test_what_is_written_to_a_file_that_was_replaced_does_not_come_back_as_ours(
    tmp_path: Path,
) -> None:
    replica = Replica(tmp_path / "replica", tick_ns=0)
    push_tree(replica, 1, {"a": b"1"})
    with open(replica.root / "a", "r+b", buffering=0) as file:
        stage(replica, 2, {"a": b"2"})
        commit(replica, 2)
        file.write(b"x")
        written_ns = os.fstat(file.fileno()).st_mtime_ns
    clock = tmp_path / "clock"
    deadline = time.monotonic() + 10
    clock.touch()
    while clock.stat().st_mtime_ns == written_ns:  # of the file system
        assert time.monotonic() < deadline
        clock.touch()
    replica.settle()
    go_back(replica, 3, {"a": b"1"})
    assert read_tree(replica.root) == {"a": b"1"}
    replica.close()


def test_a_file_that_is_written_to_on_its_way_to_another_name_is_not_what_was_pushed(
    folder: Path, replica: Replica
) -> None:
    (folder / "a").write_bytes(b"1")
    author = Author(folder, replica)
    author.push()
    (folder / "a").rename(folder / "b")
    push = stage_by(author)
    (replica.root / "a").write_bytes(b"x")
    push.committed(replica.handle(Commit(push.generation)))
    replica.settle()
    assert kept(replica) == [b"x"]
    assert not (replica.root / "b").exists()  # of which nobody has the content here any more
    (folder / "c").write_bytes(b"2")
    author.push()
    assert (replica.root / "b").read_bytes() == b"1"


def test_so_it_is_in_a_folder_that_takes_another_name(folder: Path, replica: Replica) -> None:
    (folder / "d").mkdir()
    for name in ("a", "b"):
        (folder / "d" / name).write_bytes(name.encode())
    author = Author(folder, replica)
    author.push()
    (replica.root / "d/checkpoint").write_bytes(b"theirs")
    (folder / "d").rename(folder / "e")
    (folder / "e/b").chmod(0o755)
    push = stage_by(author)
    (replica.root / "d/a").write_bytes(b"x")
    push.committed(replica.handle(Commit(push.generation)))
    replica.settle()
    assert sorted(kept(replica)) == [b"x"]
    assert not (replica.root / "e/a").exists()
    assert (replica.root / "e/b").stat().st_mode & 0o777 == 0o755
    assert (replica.root / "d/checkpoint").read_bytes() == b"theirs"
    (folder / "c").write_bytes(b"2")
    author.push()
    assert (replica.root / "e/a").read_bytes() == b"a"


def test_a_file_that_comes_into_a_folder_about_to_move_stays_where_it_is(
    folder: Path, replica: Replica
) -> None:
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/x").write_bytes(b"1")
    author = Author(folder, replica)
    author.push()
    (folder / "a").rename(folder / "c")
    (folder / "c/y").write_bytes(b"2")
    push = stage_by(author)
    assert push.staged is not None
    assert push.staged.moves
    (replica.root / "a/b/checkpoint").write_bytes(b"theirs")
    push.committed(replica.handle(Commit(push.generation)))
    expected: Tree = {"c/b/x": b"1", "c/y": b"2", "a/b/checkpoint": b"theirs"}
    assert {p: w for p, w in read_tree(replica.root).items() if w is not None} == expected
    assert replica.manifest.digest == author.scanner.scan().manifest.digest
    assert author.push().staged is not None
    assert [past.is_whole for past in replica.past()] == [True, True, True]


class StopsBehindMoves(Disk):
    """Loses power right behind a folder's move."""

    is_armed = False

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        super().rename(source, target)
        if self.is_armed and os.path.isdir(target):
            raise KeyboardInterrupt


@pytest.mark.parametrize("theirs", ["x", "checkpoint", None])
def test_a_folder_of_somebody_elses_in_the_old_place_is_not_moved_again(
    folder: Path, tmp_path: Path, theirs: str | None
) -> None:
    """The commit is cut short behind the move, and what runs there makes its folder anew."""
    disk = StopsBehindMoves()
    replica = Replica(tmp_path / "replica", disk)
    (folder / "a").mkdir()
    (folder / "a/x").write_bytes(b"1")
    author = Author(folder, replica)
    author.push()
    (folder / "a").rename(folder / "c")
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        author.push()
    replica.close()
    (replica.root / "a").mkdir()
    if theirs:
        (replica.root / "a" / theirs).write_bytes(b"theirs")
    again = Replica(tmp_path / "replica")
    assert again.generation == 2
    assert (again.root / "c/x").read_bytes() == b"1"
    if theirs == "checkpoint":
        assert (again.root / "a/checkpoint").read_bytes() == b"theirs"
    again.close()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_system_without_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    replica = Replica(tmp_path / "replica", Disk(can_exchange=can_exchange))
    push_tree(replica, 1, {"a": b"1", "c": b"c"})
    (replica.root / "a").write_bytes(b"x")
    assert isinstance(push_tree(replica, 2, {"a": b"2", "c": b"d"}), Committed)
    assert kept(replica) == [b"x"]
    assert isinstance(replica.handle(stage_message(3, manifest_of({"b": b"2"}), [])), Staged)
    commit(replica, 3)
    assert (replica.root / "b").read_bytes() == b"2"
    go_back(replica, 4, {"c": b"c"})
    assert (replica.root / "c").read_bytes() == b"c"
    replica.close()


def beside_it(root: Path) -> None:
    (root / "out").mkdir()
    (root / "out/log").write_bytes(b"theirs")


def itself(root: Path) -> None:
    os.chown(root, 0, 0)
    root.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is somebody else's")
@pytest.mark.parametrize(
    ("meddle", "entry"), [(beside_it, b"2"), (beside_it, "log"), (beside_it, None), (itself, b"2")]
)
def test_a_folder_that_is_somebody_elses_is_found_out_before_the_commit(
    tmp_path: Path, meddle: Callable[[Path], None], entry: bytes | str | None
) -> None:
    root = tmp_path / "replica"
    root.mkdir()
    with as_nobody(tmp_path, root):
        replica = Replica(root)
        push_tree(replica, 1, {"a": b"1"})
    meddle(root)
    with as_nobody(tmp_path):
        reply = push_tree(replica, 2, {"a": b"2", "out/b": entry})
        assert isinstance(reply, Refused)
        assert (reply.code, reply.current) == ("disk", 1)
        assert "belongs to another user" in reply.reason
        assert (root / "a").read_bytes() == b"1"
        if meddle is beside_it:
            assert isinstance(push_tree(replica, 3, {"a": b"3"}), Committed)
        replica.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is somebody else's")
def test_a_file_that_is_somebody_elses_gives_way_where_it_needs_another_mode(
    tmp_path: Path,
) -> None:
    root = tmp_path / "replica"
    root.mkdir()
    (root / "a").write_bytes(b"1")
    with as_nobody(tmp_path, root):
        replica = Replica(root)
        for number, mode in enumerate((0o755, 0o700), 1):
            assert isinstance(push_tree(replica, number, {"a": b"1"}, mode), Committed)
            assert (root / "a").stat().st_mode & 0o777 == mode
        replica.close()
    assert kept(replica) == []


@pytest.mark.parametrize("name", ["lib.so", "lib.so.1", "program"])
def test_a_large_program_is_not_changed_where_it_stands(
    folder: Path, replica: Replica, name: str
) -> None:
    (folder / name).write_bytes(LARGE)
    (folder / name).chmod(0o755 if name == "program" else 0o644)
    author = Author(folder, replica)
    author.push()
    with open(replica.root / name, "rb") as running:
        (folder / name).write_bytes(EDITED)
        author.push()
        assert running.read() == LARGE
    assert (replica.root / name).read_bytes() == EDITED


def test_a_large_file_that_is_read_only_is_replaced(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "replica"
    root.mkdir()
    (folder / "data").write_bytes(LARGE)
    (folder / "data").chmod(0o444)
    with as_nobody(tmp_path, root, folder):
        replica = Replica(root)
        author = Author(folder, replica)
        author.push()
    (folder / "data").chmod(0o644)
    (folder / "data").write_bytes(EDITED)
    (folder / "data").chmod(0o444)
    with as_nobody(tmp_path):
        author.push()
        assert (root / "data").read_bytes() == EDITED
        replica.close()


def test_a_replica_opens_where_a_file_of_ours_is_a_folder_now(
    replica: Replica,
) -> None:
    """All is looked at after a reboot."""
    push_tree(replica, 1, {"a": b"1", "b": b"2"})
    replica.close()
    (replica.root / "a").unlink()
    (replica.root / "a").mkdir()
    again = Replica(replica.root, boot_id=lambda: "another")
    assert [entry.path for entry in again.manifest] == ["b"]
    again.close()


def test_a_replica_that_could_not_open_is_not_kept(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.close()
    with monkeypatch.context() as patch:
        patch.setattr(Replica, "_open", lambda self, *_: os.stat("/nowhere"))
        with pytest.raises(FileNotFoundError) as failure:
            Replica(replica.root)
    again = Replica(replica.root)
    assert failure.value is not None
    again.close()


def fill(monkeypatch: pytest.MonkeyPatch, step: str, is_full: Callable[[], bool]) -> None:
    """Have a disk be full when the log takes a step."""
    real = Disk.append

    def append(self: Disk, path: Path, offset: int, content: bytes) -> None:
        if path.name == step and is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(self, path, offset, content)

    monkeypatch.setattr(Disk, "append", append)


def test_a_commit_that_could_not_be_noted_is_none_of_the_past(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_tree(replica, 1, {"a": b"1"})
    with monkeypatch.context() as patch:
        fill(patch, "log.2", lambda: True)
        reply = push_tree(replica, 2, {"a": b"2"})
    assert isinstance(reply, Refused)
    push_tree(replica, 3, {"a": b"3"})
    assert [past.generation for past in replica.past()] == [3, 1]
    assert all(past.is_whole for past in replica.past())


def test_a_full_disk_behind_a_commit_is_given_what_the_store_keeps(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_tree(replica, 1, {"a": b"1"})
    stage(replica, 2, {"a": b"2"})
    commit(replica, 2)
    store = replica.state_folder / "store"
    fill(monkeypatch, "log.2", lambda: any(store.iterdir()))
    replica.settle()
    monkeypatch.undo()
    assert replica.is_settled
    stage(replica, 3, {"a": b"3"})


def test_a_file_too_large_for_the_store_drives_nothing_out(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica._store, "_max_bytes", 1000)
    push_tree(replica, 1, {"a": b"1", "b": b"b" * 2000})
    push_tree(replica, 2, {"a": b"2", "b": b"b" * 2000})
    push_tree(replica, 3, {"a": b"2", "b": b"c" * 2000})
    wanted = [digest_bytes(content) for content in (b"1", b"2", b"b" * 2000)]
    assert replica.handle(AskMissing(wanted)) == Need(wanted[2:])
