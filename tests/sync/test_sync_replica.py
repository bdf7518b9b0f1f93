"""What a replica touches on its host, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from monarch_sync import Manifest, Replica, ReplicaBusy
from monarch_sync.content.digest import digest_bytes, short
from monarch_sync.content.disk import AnyPath, Disk
from monarch_sync.messages import (
    Abort,
    Aborted,
    AskContent,
    Commit,
    Committed,
    Need,
    Refused,
    Staged,
)
from monarch_sync.tree.entry import Entry, EntryKind
from tests.sync.author import Author
from tests.sync.trees import Tree, manifest_of, push_tree, read_tree, stage_message, whole


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "replica"


@pytest.fixture
def replica(root: Path) -> Iterator[Replica]:
    replica = Replica(root)
    yield replica
    replica.close()


def test_every_kind_of_entry_arrives(replica: Replica, root: Path) -> None:
    tree: Tree = {"pkg/a.py": b"1", "empty": None, "pkg/link": "a.py", "bad\udcff": b"raw"}
    assert isinstance(push_tree(replica, 1, tree), Committed)
    assert read_tree(root) == whole(tree)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": b"1"}, {"a/b": b"1"}),
        ({"a/b": b"1"}, {"a": b"1"}),
        ({"a": b"1"}, {"a": "b", "b": b"1"}),
        ({"a": "b", "b": b"1"}, {"a": b"1"}),
        ({"a": "b", "b": None}, {"a/c": b"1"}),
        ({"a": b"1", "b": b"2"}, {"a": b"2", "b": b"1"}),
        ({"old/x": b"1", "old/y": b"2"}, {"new/x": b"1", "new/y": b"2"}),
        ({"a": b"1"}, {"a": b"1", "copy": b"1", "again/copy": b"1"}),
    ],
)
def test_one_state_becomes_another(replica: Replica, root: Path, old: Tree, new: Tree) -> None:
    push_tree(replica, 1, old)
    assert isinstance(push_tree(replica, 2, new), Committed)
    assert read_tree(root) == whole(new)


def test_modes_arrive_and_change_without_content(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"run.sh": b"#!"}, 0o644)
    reply = replica.handle(stage_message(2, manifest_of({"run.sh": b"#!"}, 0o755), []))
    assert isinstance(reply, Staged)
    replica.handle(Commit(2))
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_that_nobody_may_enter_can_be_entered_on_a_host(
    replica: Replica, root: Path, is_new: bool
) -> None:
    """Else no later push could look into it, unless by the superuser."""
    if not is_new:
        push_tree(replica, 1, {"d": None})
    shut = Manifest([Entry("d", EntryKind.DIR, 0o044)])
    assert isinstance(replica.handle(stage_message(2, shut, []), []), Staged)
    assert isinstance(replica.handle(Commit(2)), Committed)
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o544


def test_a_replica_that_was_removed_says_what_to_do(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"a": b"1"})
    shutil.rmtree(root)
    shutil.rmtree(replica.state_folder)
    reply = push_tree(replica, 2, {"a": b"2"})
    assert isinstance(reply, Refused)
    assert (reply.path, reply.reason.partition(":")[0]) == (
        str(replica.state_folder), "it was removed while in use",
    )  # fmt: skip
    replica.close()
    again = Replica(root)
    assert isinstance(push_tree(again, 1, {"a": b"2"}), Committed)
    again.close()


def test_files_of_the_host_stay(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"pkg/a.py": b"1"})
    (root / "pkg/checkpoint.pt").write_bytes(b"weights")
    push_tree(replica, 2, {})
    assert read_tree(root) == {"pkg": None, "pkg/checkpoint.pt": b"weights"}


@pytest.mark.parametrize("new", [{"a": b"new"}, {}, {"a/b": b"new"}])
def test_a_file_changed_on_the_host_is_kept(replica: Replica, root: Path, new: Tree) -> None:
    push_tree(replica, 1, {"a": b"ours"})
    (root / "a").write_bytes(b"theirs")
    reply = push_tree(replica, 2, new)
    kept = f"a.host-{short(digest_bytes(b'theirs'))}"
    assert reply == Committed(2, [kept.encode()])
    assert read_tree(root) == whole({**new, kept: b"theirs"})


def test_a_file_that_was_there_before_us_is_kept_unless_equal(replica: Replica, root: Path) -> None:
    (root / "same").write_bytes(b"1")
    (root / "other").write_bytes(b"theirs")
    reply = push_tree(replica, 1, {"same": b"1", "other": b"ours"})
    assert isinstance(reply, Committed)
    assert len(reply.kept) == 1
    assert (root / "other").read_bytes() == b"ours"
    assert (root / reply.kept[0].decode()).read_bytes() == b"theirs"


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127])
def test_a_file_is_kept_whose_name_leaves_no_room(replica: Replica, root: Path, name: str) -> None:
    (root / name).write_bytes(b"theirs")
    reply = push_tree(replica, 1, {name: b"ours"})
    assert isinstance(reply, Committed)
    (kept,) = (one.decode() for one in reply.kept)
    assert kept.endswith(f".host-{short(digest_bytes(b'theirs'))}")
    assert name.startswith(kept[: kept.index(".")])
    assert read_tree(root) == {name: b"ours", kept: b"theirs"}


def test_what_is_kept_takes_the_place_of_nothing_that_was_kept_before(
    replica: Replica, root: Path
) -> None:
    taken = f"a.host-{short(digest_bytes(b'theirs'))}"
    (root / taken).write_bytes(b"kept once, then edited")
    push_tree(replica, 1, {"a": b"1"})
    kept = {taken: b"kept once, then edited"}
    for number in range(2, 6):
        (root / "a").unlink()
        if number % 2:
            (root / "a").mkdir()
            (root / "a/checkpoint.pt").write_bytes(b"%d" % number)
        else:
            (root / "a").write_bytes(b"theirs")
        reply = push_tree(replica, number, {"a": b"%d" % number})
        assert isinstance(reply, Committed), reply
        for one in reply.kept:
            inside = b"theirs" if number % 2 == 0 else None
            kept[one.decode()] = inside
            if inside is None:
                kept[f"{one.decode()}/checkpoint.pt"] = b"%d" % number
    assert len(kept) == 6, "the same content is kept once, each folder for itself"
    assert read_tree(root) == {"a": b"5", **kept}


def test_a_missing_file_comes_back_with_a_whole_push(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"a": b"1"})
    (root / "a").unlink()
    push_tree(replica, 2, {"a": b"1"})
    assert read_tree(root) == {"a": b"1"}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root that a link in the replica will lead to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"1")
    os.chmod(outside / "f", 0o600)
    return outside


@pytest.mark.parametrize("tree", [{"d/f": b"2"}, {"d/f": b"1"}, {}, {"d/f/g": b"3"}, {"d": b"4"}])
def test_nothing_is_written_through_a_link(
    replica: Replica, root: Path, outside: Path, tree: Tree
) -> None:
    push_tree(replica, 1, {"d/f": b"1"})
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(outside)
    push_tree(replica, 2, tree, mode=0o777)
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_bytes() == b"1"
    assert stat.S_IMODE((outside / "f").stat().st_mode) == 0o600


def test_paths_that_lead_out_are_refused_by_name(replica: Replica) -> None:
    bad = Manifest([Entry("../etc", EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))])
    reply = replica.handle(stage_message(1, bad, [b"1"]), [b"1"])
    assert isinstance(reply, Refused)
    assert (reply.code, reply.path) == ("bad-manifest", "../etc")


def test_missing_content_is_asked_for_and_not_committed(replica: Replica, root: Path) -> None:
    manifest = manifest_of({"a": b"1"})
    assert replica.handle(stage_message(1, manifest, [])) == Need([digest_bytes(b"1")])
    assert isinstance(replica.handle(Commit(1)), Refused)
    assert isinstance(replica.handle(stage_message(1, manifest, [b"1"]), [b"1"]), Staged)
    assert isinstance(replica.handle(Commit(1)), Committed)
    assert read_tree(root) == {"a": b"1"}


def test_known_content_needs_no_bytes(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"a": b"main"})
    push_tree(replica, 2, {"a": b"branch"})
    back = replica.handle(stage_message(3, manifest_of({"a": b"main"}), []))
    assert isinstance(back, Staged)
    replica.handle(Commit(3))
    assert read_tree(root) == {"a": b"main"}


def test_damaged_content_is_refused(replica: Replica, root: Path) -> None:
    reply = replica.handle(stage_message(1, manifest_of({"a": b"1"}), [b"1"]), [b"x"])
    assert isinstance(reply, Refused)
    assert reply.code == "damaged"
    assert isinstance(replica.handle(Commit(1)), Refused)
    assert read_tree(root) == {}


def test_abort_forgets_what_was_staged(replica: Replica, root: Path) -> None:
    replica.handle(stage_message(1, manifest_of({"a": b"1"}), [b"1"]), [b"1"])
    assert replica.handle(Abort(1)) == Aborted(1)
    assert isinstance(replica.handle(Commit(1)), Refused)
    assert read_tree(root) == {}


def test_a_commit_asked_for_twice_is_answered_twice(replica: Replica) -> None:
    assert push_tree(replica, 1, {"a": b"1"}) == Committed(1, [])
    assert replica.handle(Commit(1)) == Committed(1, [])


def test_an_older_generation_is_refused(replica: Replica) -> None:
    push_tree(replica, 5, {"a": b"1"})
    reply = push_tree(replica, 5, {"a": b"2"})
    assert isinstance(reply, Refused)
    assert (reply.code, reply.current) == ("stale", 5)
    assert "me@laptop" in reply.reason


def test_a_new_process_knows_what_the_last_one_put_there(root: Path) -> None:
    first = Replica(root)
    push_tree(first, 3, {"a": b"1"})
    first.close()
    second = Replica(root)
    assert (second.generation, second.author) == (3, "me@laptop")
    assert second.manifest == manifest_of({"a": b"1"})
    second.close()


def test_one_process_keeps_a_replica(replica: Replica, root: Path) -> None:
    with pytest.raises(ReplicaBusy, match="replica"):
        Replica(root)


def test_after_a_reboot_damaged_files_are_brought_again(
    root: Path,
) -> None:
    first = Replica(root)
    push_tree(first, 1, {"torn": b"content", "sound": b"1"})
    first.close()
    (root / "torn").write_bytes(b"")
    second = Replica(root, boot_id=lambda: "another")
    assert "torn" not in second.manifest
    push_tree(second, 2, {"torn": b"content", "sound": b"1"})
    assert (root / "torn").read_bytes() == b"content"
    second.close()


def test_what_an_older_folder_in_the_place_of_ours_lacks_is_not_claimed(root: Path) -> None:
    """What is known of ours lies beside it, and says nothing of that one."""
    first = Replica(root)
    push_tree(first, 1, {"changed": b"1", "same": b"1"})
    shutil.copytree(root, f"{root}.early")
    push_tree(first, 2, {"changed": b"2", "same": b"1", "new": b"2"})
    first.settle()
    first.close()
    shutil.rmtree(root)
    os.rename(f"{root}.early", root)
    second = Replica(root)
    known = [entry.path for entry in second.manifest]
    second.close()
    assert known == ["same"]


@pytest.mark.parametrize(
    "damage", [b"", b"\x94\x01\xa2\xff\xff\xc4\x00\xa0"], ids=["torn", "no text"]
)
def test_a_torn_state_file_does_not_keep_the_replica_from_opening(
    root: Path, damage: bytes
) -> None:
    first = Replica(root)
    push_tree(first, 1, {"a": b"1"})
    first.close()
    (first.state_folder / "current.2").write_bytes(damage)
    second = Replica(root)
    assert push_tree(second, 2, {"a": b"1"}) == Committed(2, [])
    second.close()


def test_what_was_closed_writes_no_more(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"a": b"1"})
    replica.close()
    reply = push_tree(replica, 2, {"a": b"2"})
    assert isinstance(reply, Refused)
    assert reply.code == "closed"
    assert (root / "a").read_bytes() == b"1"


def test_an_empty_folder_that_was_tidied_away_is_made_again(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"a": b"1"})
    (replica.state_folder / "stage").rmdir()
    assert isinstance(push_tree(replica, 2, {"a": b"2"}), Committed)
    assert (root / "a").read_bytes() == b"2"


def test_bytecode_is_never_taken_for_fresh(replica: Replica, root: Path) -> None:
    # Same size, and as a rule the same second: Python compares no more than that.
    for number in range(1, 4):
        push_tree(replica, number, {"m.py": b"print(%d)" % number})
        assert run_module(root) == str(number)


def test_a_removed_package_leaves_no_husk(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"pkg/__init__.py": b"", "m.py": b"import pkg"})
    run_module(root)
    assert (root / "pkg/__pycache__").is_dir()
    push_tree(replica, 2, {"m.py": b""})
    assert not (root / "pkg").exists()


def run_module(root: Path) -> str:
    """Import `m` in a new interpreter that writes and reads bytecode."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-S", "-c", "import m"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_what_the_store_has_no_more_is_taken_from_where_it_stands(
    replica: Replica, root: Path
) -> None:
    for generation, tree in enumerate(({"a": b"1", "b": b"1"}, {"a": b"2", "b": b"1"}), 1):
        assert isinstance(push_tree(replica, generation, tree), Committed)
    stored = replica.state_folder / "store" / digest_bytes(b"1").hex()
    assert stored.read_bytes() == b"1"
    stored.write_bytes(b"damaged")
    new: Tree = {"a": b"2", "b": b"1", "c": b"1"}
    assert isinstance(replica.handle(stage_message(3, manifest_of(new), [])), Staged)
    assert isinstance(replica.handle(Commit(3)), Committed)
    assert read_tree(root) == new


def test_a_state_that_was_here_lately_is_known(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica(root)
    author = Author(folder, replica)
    for content in (b"1", b"2"):
        (folder / "a").write_bytes(content)
        (folder / "b").write_bytes(b"b" + content)
        author.push()
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"b1")
    with monkeypatch.context() as patch:
        patch.delattr("monarch_sync.replicas.replica.manifest_of")
        author.push()
    assert read_tree(root) == {"a": b"1", "b": b"b1"}
    state = replica.manifest
    replica.close()
    again = Replica(root)
    assert (again.generation, again.manifest) == (3, state)
    again.close()


class CountingDisk(Disk):
    """Counts the files that are given another's name."""

    def __init__(self) -> None:
        super().__init__()
        self.num_renamed_over = 0

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        self.num_renamed_over += os.path.lexists(target)
        super().rename(source, target)


def test_equal_files_that_go_are_kept_once_and_never_renamed_over_each_other(root: Path) -> None:
    """Renaming over another file has ext4 write both out first: 2 ms each, as all stand still."""
    disk = CountingDisk()
    replica = Replica(root, disk)
    tree: Tree = {f"pkg/{number}.py": f"{number % 3}\n".encode() for number in range(30)}
    push_tree(replica, 1, tree)
    before = disk.num_renamed_over
    push_tree(replica, 2, {})
    assert disk.num_renamed_over == before
    assert read_tree(root) == {}
    # All of it comes back without a byte sent.
    assert isinstance(replica.handle(stage_message(3, manifest_of(tree), [])), Staged)
    assert isinstance(replica.handle(Commit(3)), Committed)
    assert read_tree(root) == whole(tree)
    replica.close()


@pytest.mark.parametrize("is_made_by_an_earlier_version", [False, True])
def test_nobody_else_can_look_at_what_is_kept_of_a_private_folder(
    root: Path, is_made_by_an_earlier_version: bool
) -> None:
    mask = os.umask(0o022)
    try:
        replica = Replica(root)
        if is_made_by_an_earlier_version:
            replica.close()
            replica.state_folder.chmod(0o755)
            replica = Replica(root)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(replica.state_folder.stat().st_mode) == 0o700
    replica.close()


def lying(tree: Tree, size: int) -> Manifest:
    """Its entries say another size than their contents have."""
    return Manifest(
        msgspec.structs.replace(entry, size=size) if entry.is_file else entry
        for entry in manifest_of(tree)
    )


def test_a_size_that_is_none_of_its_content_is_refused(replica: Replica, root: Path) -> None:
    push_tree(replica, 1, {"there": b"1"})
    for name, contents in (("new", [b"2"]), ("there", [])):
        manifest = lying({name: contents[0] if contents else b"1"}, 1 << 50)
        reply = replica.handle(stage_message(2, manifest, contents), contents)
        assert isinstance(reply, Refused)
        assert reply.code == "bad-manifest"
        assert f"and not the {1 << 50}" in reply.reason
    assert read_tree(root) == {"there": b"1"}


@pytest.mark.parametrize(("offset", "size"), [(-5, 10), (0, -1)])
def test_nothing_lies_before_the_beginning_of_a_content(
    replica: Replica, offset: int, size: int
) -> None:
    push_tree(replica, 1, {"a": b"content"})
    reply = replica.handle(AskContent(digest_bytes(b"content"), offset, size))
    assert isinstance(reply, Refused)
    assert reply.code == "bad-question"
