"""Trees that are hard to mirror, messages that lie, and disks that are full.

What else a workspace is to outlive, and where that is tested:

a file that changes while it is read    here, and test_sync_reading.py
a tree that is deleted under a watch    test_sync_watch.py, tests/cli/test_cli_sync_watch.py
200,000 files; 4 GiB in one             here and test_sync_odd_trees.py (`make huge`)
a name in another case                  here, and test_sync_odd_trees.py
a crash at any step                     test_sync_crash.py, test_sync_large.py
a host or a proc killed at any step     tests/workspace/test_workspace_kills.py
an author killed; several of them       tests/workspace/test_workspace_authors.py
a clock that is off by a day            test_sync_odd_trees.py, test_sync_scan.py
another version                         tests/workspace/test_workspace_versions.py
a hostile peer                          here, and tests/workspace/test_workspace_bad_peers.py
a branch switch of 5,000 files          tests/workspace/test_workspace_branch.py (`make huge`)
a job that writes into the workspace    tests/workspace/test_workspace_files.py
a folder whose disk is not mounted      test_sync_emptied.py, test_sync_scan.py
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_sync import Manifest, Replica, Scanner, Workspace, sync_local
from monarch_sync.content.delta import compress
from monarch_sync.content.digest import digest_bytes
from monarch_sync.content.disk import AnyPath, Content, Disk
from monarch_sync.errors import BadMessage, PushRefused
from monarch_sync.messages import (
    AskContent,
    Blob,
    Commit,
    Committed,
    Piece,
    Refused,
    StageRequest,
    decode,
    encode,
)
from monarch_sync.tree.entry import Entry, EntryKind, to_wire
from tests.sync.author import Author
from tests.sync.trees import Tree, manifest_of, push_tree, read_tree, stage_message, whole


@pytest.mark.parametrize(
    "name",
    ["new\nline", "tab\t", "a" * 255, "bad\udcff\udc80", " ", "*?[x]", "ünïcödé", "-rf", "\\"],
)
def test_any_name_arrives(folder: Path, replica: Replica, name: str) -> None:
    (folder / name).write_bytes(b"1")
    (folder / "d").mkdir()
    (folder / "d" / name).mkdir()
    (folder / "d" / name / name).write_bytes(b"2")
    author = Author(folder, replica)
    author.push()
    assert read_tree(replica.root) == read_tree(folder)
    (folder / name).write_bytes(b"edited")
    author.push([folder / name])
    shutil.rmtree(folder / "d" / name)
    author.push([folder / "d" / name])
    assert read_tree(replica.root) == read_tree(folder) == {name: b"edited", "d": None}


def grow(folder: Path) -> None:
    (folder / "a").write_bytes(b"1")
    (folder / "d").mkdir()
    (folder / "d/x").write_bytes(b"2")
    (folder / "d/y").write_bytes(b"3")


def file_to_folder(folder: Path) -> None:
    (folder / "a").unlink()
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c").write_bytes(b"1")


def folder_to_link(folder: Path) -> None:
    (folder / "d").rename(folder / "e")
    (folder / "d").symlink_to("e")


def folder_to_file(folder: Path) -> None:
    shutil.rmtree(folder / "d")
    (folder / "d").write_bytes(b"2")


def other_case(folder: Path) -> None:
    (folder / "a").rename(folder / "A")
    (folder / "d").rename(folder / "D")


def into_itself(folder: Path) -> None:
    (folder / "d").rename(folder / "tmp")
    (folder / "d").mkdir()
    (folder / "tmp").rename(folder / "d/d")


def swapped(folder: Path) -> None:
    (folder / "d/x").rename(folder / "tmp")
    (folder / "d/y").rename(folder / "d/x")
    (folder / "tmp").rename(folder / "d/y")


CHANGES = [file_to_folder, folder_to_link, folder_to_file, other_case, into_itself, swapped]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_told", [False, True])
def test_one_kind_becomes_another(
    folder: Path, replica: Replica, change: Callable[[Path], None], is_told: bool
) -> None:
    grow(folder)
    author = Author(folder, replica)
    author.push()
    change(folder)
    author.push([folder / name for name in "aAdDe"] if is_told else None)
    assert read_tree(replica.root) == read_tree(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    grow(folder)
    author.push()
    assert read_tree(replica.root) == read_tree(folder)


def test_a_write_to_one_name_of_a_file_changes_all(folder: Path, replica: Replica) -> None:
    (folder / "d").mkdir()
    (folder / "a").write_bytes(b"1")
    os.link(folder / "a", folder / "d/b")
    author = Author(folder, replica)
    author.push()
    with open(folder / "a", "ab") as file:
        file.write(b"more")
    author.push([folder / "a"])
    assert read_tree(replica.root) == read_tree(folder)
    assert (replica.root / "a").stat().st_nlink == 1


@contextlib.contextmanager
def as_nobody(*folders: Path) -> Iterator[None]:
    """Root may write anywhere: be somebody else for a while, who owns these folders."""
    if os.geteuid():
        yield
        return
    for folder in folders:
        os.chown(folder, 65534, 65534)
        for above in (folder, *folder.parents):
            if above.stat().st_uid == 0 and str(above).startswith("/tmp/"):
                above.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_read_only_folders_are_mirrored_and_stay_so(tmp_path: Path) -> None:
    root = tmp_path / "nobody"
    root.mkdir()
    with as_nobody(root):
        folder = root / "project"
        (folder / "d").mkdir(parents=True)
        for name in ("edited", "gone", "kept"):
            (folder / "d" / name).write_bytes(b"1")
        (folder / "d").chmod(0o555)
        replica = Replica(root / "replica")
        author = Author(folder, replica)
        author.push()
        (folder / "d").chmod(0o755)
        (folder / "d/edited").write_bytes(b"2")
        (folder / "d/gone").unlink()
        (folder / "d").chmod(0o555)
        author.push()
        assert read_tree(replica.root) == read_tree(folder)
        assert stat.S_IMODE((replica.root / "d").stat().st_mode) == 0o555
        (folder / "d").chmod(0o755)
        (replica.root / "d").chmod(0o755)
        replica.close()


def test_a_read_only_folder_moves_into_another(tmp_path: Path) -> None:
    root = tmp_path / "nobody"
    root.mkdir()
    with as_nobody(root):
        folder = root / "project"
        (folder / "d").mkdir(parents=True)
        (folder / "other").mkdir()
        (folder / "d/x").write_bytes(b"1")
        (folder / "other/y").write_bytes(b"2")
        (folder / "d").chmod(0o555)
        replica = Replica(root / "replica")
        author = Author(folder, replica)
        author.push()
        (folder / "d").chmod(0o755)
        (folder / "d").rename(folder / "other/d")
        (folder / "other/d").chmod(0o555)
        push = author.push()
        assert push.staged is not None
        assert push.staged.moves == [(b"d", b"other/d")]
        assert read_tree(replica.root) == read_tree(folder)
        assert stat.S_IMODE((replica.root / "other/d").stat().st_mode) == 0o555
        for at in (folder, replica.root):
            (at / "other/d").chmod(0o755)
        replica.close()


@pytest.mark.parametrize("new", [b"newer", b"new"], ids=["of another size", "of the same size"])
def test_a_file_that_moves_while_it_is_read_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, new: bytes
) -> None:
    (folder / "a").write_bytes(b"old")
    os.utime(folder / "a", (1, 1))  # else both may be of one tick of the clock

    def meddle(content: bytes) -> bytes:
        if content == b"old":
            (folder / "a").write_bytes(new)
        return digest_bytes(content)

    monkeypatch.setattr("monarch_sync.scanning.readings.digest_bytes", meddle)
    scan = Scanner(Workspace({folder: ""})).scan()
    entry = scan.manifest.get("a")
    assert entry is not None
    assert (entry.digest, entry.size) == (digest_bytes(new), len(new))


def test_what_was_scanned_is_pushed_though_the_file_moved_on(
    folder: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"scanned")
    author = Author(folder, replica)
    scan = author.scanner.scan

    def scan_and_meddle() -> object:
        result = scan()
        (folder / "a").write_bytes(b"later")
        return result

    monkeypatch.setattr(author.scanner, "scan", scan_and_meddle)
    author.push()
    assert read_tree(replica.root) == {"a": b"scanned"}
    monkeypatch.undo()
    author.push()
    assert read_tree(replica.root) == {"a": b"later"}


class FullDisk(Disk):
    """Takes so many bytes of content, and of the last file only the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 60

    def put(self, path: AnyPath, content: Content, mode: int, mtime: int | None = None) -> None:
        fits = content[: max(self.room, 0)]
        self.room -= len(content)
        super().put(path, fits, mode, mtime)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    def append(self, path: AnyPath, offset: int, content: bytes) -> None:
        fits = content[: max(self.room, 0)]
        self.room -= len(content)
        super().append(path, offset, fits)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


@pytest.mark.parametrize("room", [0, 1, 5, 9, 12, 13, 40])
def test_a_full_disk_in_the_middle_changes_nothing(tmp_path: Path, room: int) -> None:
    disk = FullDisk()
    replica = Replica(tmp_path, disk)
    old: Tree = {"a": b"1111", "b": b"2222", "d/c": b"3333"}
    new: Tree = {"a": b"one.", "b": b"two.", "d/c": b"three", "e": b"four"}
    assert isinstance(push_tree(replica, 1, old), Committed)
    disk.room = room
    reply = push_tree(replica, 2, new)
    assert isinstance(reply, Refused)
    assert "space" in reply.reason
    assert read_tree(tmp_path) == whole(old)
    assert replica.generation == 1
    disk.room = 1 << 60
    assert isinstance(push_tree(replica, 2, new), Committed)
    assert read_tree(tmp_path) == whole(new)
    replica.close()
    again = Replica(tmp_path)
    assert again.manifest == manifest_of(new)
    again.close()


class SmallDisk(Disk):
    """Has room for so many bytes below a folder."""

    def __init__(self, folder: Path, room: int) -> None:
        super().__init__()
        self.folder = folder
        self.room = room

    def put(self, path: AnyPath, content: Content, mode: int, mtime: int | None = None) -> None:
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        if sum(file.stat().st_size for file in files) + len(content) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        super().put(path, content, mode, mtime)


def test_what_is_kept_of_earlier_states_gives_way_on_a_full_disk(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 50_000)
    replica = Replica(tmp_path, disk)
    for number in range(1, 20):
        reply = push_tree(replica, number, {"a": os.urandom(9_000), "b": os.urandom(9_000)})
        assert isinstance(reply, Committed), reply
    kept = list(replica.past())
    assert kept[0].generation == 19

    # What cannot fit is refused.
    reply = push_tree(replica, 20, {"a": os.urandom(60_000)})
    assert isinstance(reply, Refused)
    assert "space" in reply.reason
    assert replica.generation == 19
    replica.close()


def file_at(path: str) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, 1, digest_bytes(b"1"))


FOLDER = Entry("d", EntryKind.DIR, 0o755)


@pytest.mark.parametrize(
    ("entries", "where"),
    [
        ([file_at("/etc/passwd")], "/etc/passwd"),
        ([file_at("../x")], "../x"),
        ([FOLDER, file_at("d/../../x")], "d/../../x"),
        ([FOLDER, file_at("d/./x")], "d/./x"),
        ([FOLDER, file_at("d//x")], "d//x"),
        ([file_at("d/x")], "d/x"),
        ([file_at("nul\0x")], "nul\0x"),
        ([file_at(".monarch/log")], ".monarch/log"),
        ([file_at("")], ""),
        ([Entry("l", EntryKind.LINK, target="/etc")], "l"),
        ([Entry("l", EntryKind.LINK, target="../x")], "l"),
        ([FOLDER, Entry("d/l", EntryKind.LINK, target="../../x")], "d/l"),
        ([FOLDER, Entry("d/l", EntryKind.LINK, target="x/../../../y")], "d/l"),
        ([Entry("l", EntryKind.LINK, target="d"), FOLDER, file_at("l/x")], "l/x"),
        ([Entry("f", EntryKind.FILE, 0o4755, 1, digest_bytes(b"1"))], "f"),
        ([Entry("f", EntryKind.FILE, 0o644, -1, digest_bytes(b"1"))], "f"),
    ],
)
def test_a_hostile_manifest_is_refused_by_name(
    replica: Replica, entries: list[Entry], where: str
) -> None:
    reply = replica.handle(stage_message(1, Manifest(entries), [b"1"]), [b"1"])
    assert isinstance(reply, Refused)
    assert (reply.code, reply.path) == ("bad-manifest", where)
    assert isinstance(replica.handle(Commit(1)), Refused)
    assert read_tree(replica.root) == {}
    assert not (replica.root.parent / "x").exists()


DIGEST = digest_bytes(b"1")


@pytest.mark.parametrize(
    "blob",
    [
        Blob(b"", 4, "pack", parts=[(DIGEST, 1 << 60)]),
        Blob(b"", 4, "pack", parts=[(DIGEST, -1), (DIGEST, 5)]),
        Blob(b"", 4, "pack", parts=[(DIGEST, 1)]),
        Blob(b"", 4, "frame", parts=[(DIGEST, 1 << 60)]),
        Blob(b"", 4, "frame", parts=[(DIGEST, 1)]),
        Blob(DIGEST, 4, "raw"),
    ],
)
def test_a_blob_that_lies_is_refused(replica: Replica, blob: Blob) -> None:
    manifest = manifest_of({"a": b"1"})
    stage = StageRequest(
        1, "me", manifest.digest_name, manifest.digest, b"", manifest.rows(), [], [blob]
    )  # fmt: skip
    reply = replica.handle(stage, [b"four"])
    assert isinstance(reply, Refused)
    assert reply.code == "damaged"
    assert isinstance(push_tree(replica, 1, {"a": b"1"}), Committed)


def test_a_bomb_is_not_unpacked(replica: Replica) -> None:
    bomb = compress(bytes(64 << 20))
    manifest = manifest_of({"a": b"1"})
    blob = Blob(b"", len(bomb), "frame", parts=[(DIGEST, 1)])
    stage = StageRequest(
        1, "me", manifest.digest_name, manifest.digest, b"", manifest.rows(), [], [blob]
    )  # fmt: skip
    tracemalloc.start()
    try:
        assert isinstance(replica.handle(stage, [bomb]), Refused)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def stage_moves(base: Manifest, moves: list[tuple[str, str]]) -> StageRequest:
    """A stage of folders under other names, whose digest nobody could have worked out."""
    return StageRequest(
        2, "me", base.digest_name, bytes(16), base.digest, [], [], [],
        [(to_wire(old), to_wire(new)) for old, new in moves],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("moves", "where"),
    [
        ([("d", "../out")], "../out"),
        ([("d", "/tmp/out")], "/tmp/out"),
        ([("d", ".monarch/out")], ".monarch/out"),
        ([("nothing", "e")], "nothing"),
        ([("d", "f")], "d"),
        ([("f", "g")], "f"),
        ([("d", "e/deep")], "e/deep"),
        ([("d/e", "shallow")], "shallow/link"),
        ([("d", "d/d")], "d/d"),
        ([("d", "x/" * 300 + "d")], "x/" * 300 + "d"),
    ],
)
def test_a_hostile_move_is_refused_by_name(
    replica: Replica, moves: list[tuple[str, str]], where: str
) -> None:
    tree: Tree = {"f": b"1", "d/e/link": "../../f", "d/x": b"2"}
    push_tree(replica, 1, tree)
    reply = replica.handle(stage_moves(replica.manifest, moves))
    assert isinstance(reply, Refused)
    assert reply.code == "bad-manifest"
    assert isinstance(replica.handle(Commit(2)), Refused)
    assert read_tree(replica.root) == whole(tree)
    assert reply.path == where


@pytest.mark.parametrize(
    "path", ["../out", "/tmp/out", "d//x", ".monarch/log", "x/" * 100_000, "x/" * 2000 + "x"]
)
def test_a_hostile_path_to_remove_is_refused_by_name(replica: Replica, path: str) -> None:
    tree: Tree = {"f": b"1"}
    push_tree(replica, 1, tree)
    base = replica.manifest
    stage = StageRequest(2, "me", base.digest_name, bytes(16), base.digest, [], [to_wire(path)], [])
    reply = replica.handle(stage)
    assert isinstance(reply, Refused)
    assert (reply.code, reply.path) == ("bad-manifest", path)
    assert read_tree(replica.root) == whole(tree)


def test_a_path_that_would_be_too_long_on_the_host_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its folder, which comes whole, could be put there; it could not be taken away again."""
    replica = Replica(tmp_path / ("x" * 200) / "copy")
    (folder / "a.py").write_text("A = 1\n")
    author = Author(folder, replica)
    author.push()
    deep = "/".join(["d" * 200] * 25)[: 4060 - len(os.fsencode(folder))]
    with make_deep(folder, deep):
        (folder / "a.py").write_text("A = 2\n")
        with pytest.raises(PushRefused, match="too long"):
            author.push()
        assert read_tree(replica.root) == {"a.py": b"A = 1\n"}
        # Nor does a folder with such a path in it get a longer name.
        top = folder / ("d" * 200)
        top.rename(folder / "d")
        author.push()
        (folder / "d").rename(top)
        with pytest.raises(PushRefused, match="too long"):
            author.push()
    author.push()
    assert read_tree(replica.root) == {"a.py": b"A = 2\n"}
    replica.close()


@contextlib.contextmanager
def make_deep(folder: Path, path: str) -> Iterator[None]:
    """A file at a path that may be too long to be named at once."""
    *folders, name = path.split("/")
    at = os.open(folder, os.O_RDONLY)
    for one in folders:
        os.mkdir(one, dir_fd=at)
        at, above = os.open(one, os.O_RDONLY, dir_fd=at), at
        os.close(above)
    # By an absolute path, so that the write guard can tell where that is.
    os.close(os.open(f"/proc/self/fd/{at}/{name or 'x'}", os.O_CREAT))
    os.close(at)
    try:
        yield
    finally:
        for made in folder.iterdir():
            if made.is_dir():
                shutil.rmtree(made)


SOUND = encode(StageRequest(1, "me", "", b"", b"", [], [], []))


@pytest.mark.parametrize(
    "data",
    [
        SOUND.replace(b"me", b"\xff\xff"),
        # One more field than there is; whatever a later version puts there is passed over.
        SOUND[:1] + bytes([SOUND[1] + 1]) + SOUND[2:] + b"\x91" * 100_000,
    ],
    ids=["no text", "folded without end"],
)
def test_bytes_that_are_no_message_are_named_as_such(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(data)


def test_a_refusal_may_name_a_file_that_is_not_utf8() -> None:
    told = decode(encode(Refused("disk", "no room for bad\udcff", "bad\udcff", 1)))
    assert told == Refused("disk", "no room for bad\\udcff", "bad\\udcff", 1)


def test_a_piece_from_beyond_any_content_is_empty(replica: Replica) -> None:
    push_tree(replica, 1, {"f": b"1"})
    assert replica.handle(AskContent(digest_bytes(b"1"), (1 << 64) - 1, 1)) == Piece(b"")


def test_a_generation_that_none_could_follow_is_refused(replica: Replica) -> None:
    reply = push_tree(replica, (1 << 64) - 1, {"f": b"1"})
    assert isinstance(reply, Refused)
    assert reply.code == "bad-generation"
    assert isinstance(push_tree(replica, 1, {"f": b"1"}), Committed)


def test_folders_without_end_are_refused(replica: Replica) -> None:
    depth = 700
    rows = [Entry("/".join("d" * i), EntryKind.DIR, 0o755).to_row() for i in range(1, depth)]
    stage = StageRequest(1, "me", Manifest().digest_name, bytes(16), b"", rows, [], [])
    reply = replica.handle(stage)
    assert isinstance(reply, Refused)
    assert reply.code == "bad-manifest"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("nobody lets us mount a small file system")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_disk_that_really_is_full_changes_nothing(folder: Path, small_disk: Path) -> None:
    rand = random.Random(0)
    for i in range(10):
        (folder / f"f{i}").write_bytes(rand.randbytes(40_000))
    replica = Replica(small_disk / "replica")
    author = Author(folder, replica)
    author.push()
    before = read_tree(replica.root)
    for i in range(10):
        (folder / f"f{i}").write_bytes(rand.randbytes(90_000))
    with pytest.raises(PushRefused, match="space") as caught:
        author.push()
    assert caught.value.code == "disk"
    assert read_tree(replica.root) == before
    assert not any((replica.state_folder / "stage").iterdir())
    for i in range(5, 10):
        (folder / f"f{i}").unlink()
    author.push()
    assert read_tree(replica.root) == read_tree(folder)
    replica.close()


def test_holes_stay_holes(folder: Path, replica: Replica) -> None:
    with open(folder / "sparse", "wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"in the middle")
    author = Author(folder, replica)
    author.push()
    there = replica.root / "sparse"
    assert digest_bytes(there.read_bytes()) == digest_bytes((folder / "sparse").read_bytes())
    assert there.stat().st_blocks * 512 < 8 << 20


@pytest.mark.huge
def test_a_sparse_file_of_4_gib_stays_sparse(folder: Path, replica: Replica) -> None:
    path = folder / "sparse"
    with open(path, "wb") as file:
        file.seek(2 << 30)
        file.write(b"in the middle")
        file.truncate(4 << 30)
    author = Author(folder, replica)
    author.push()
    mirrored = replica.root / "sparse"
    assert mirrored.stat().st_size == 4 << 30
    assert mirrored.stat().st_blocks * 512 < 16 << 20
    with open(path, "r+b") as file:
        file.seek(3 << 30)
        file.write(b"edited")
    assert author.push([path]).bytes_sent < 1 << 20
    with open(mirrored, "rb") as file:
        file.seek(2 << 30)
        assert file.read(13) == b"in the middle"
        file.seek(3 << 30)
        assert file.read(6) == b"edited"


@pytest.mark.huge
def test_200_000_files(folder: Path, replica: Replica) -> None:
    for i in range(500):
        (folder / f"d{i}").mkdir()
        for k in range(400):
            (folder / f"d{i}" / str(k)).write_bytes(b"%d %d" % (i, k))
    author = Author(folder, replica)
    author.push()
    assert replica.manifest.num_files == 200_000
    (folder / "d7/7").write_bytes(b"edited")
    assert author.push([folder / "d7/7"]).bytes_sent < 100
    (folder / "d8").rename(folder / "moved")
    assert author.push([folder / "d8", folder / "moved"]).bytes_sent == 0
    assert (replica.root / "d7/7").read_bytes() == b"edited"
    assert (replica.root / "moved/399").read_bytes() == b"8 399"
    assert not (replica.root / "d8").exists()


def test_sync_local_reports_what_it_left_out(folder: Path, replica: Replica) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "a").write_bytes(b"1")
    report = sync_local(Workspace({folder: ""}), replica)
    assert [problem.path for problem in report.problems] == ["pipe"]
    assert read_tree(replica.root) == {"a": b"1"}
