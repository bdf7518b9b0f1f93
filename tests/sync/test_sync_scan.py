"""Folders to manifests: what is taken, what is left out, and what is read again."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_sync import Scanner, Workspace, WorkspaceMissing
from monarch_sync import scan as scan_once
from monarch_sync.ignoring.git_index import parse, tracked_paths
from monarch_sync.scanning import readings as READ
from monarch_sync.scanning.scanner import Scan


def write(folder: Path, *paths: str, content: str = "1") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def paths_of(scan: Scan) -> list[str]:
    return [entry.path for entry in scan.manifest if not entry.is_dir]


def flat(folder: Path, **options: tuple[str, ...]) -> Workspace:
    return Workspace({folder: ""}, **options)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_every_kind_of_entry_is_taken(folder: Path) -> None:
    write(folder, "a.py", os.fsdecode(b"bad\xff.py"), "pkg/b.py")
    os.chmod(folder / "a.py", 0o750)
    (folder / "empty").mkdir()
    (folder / "pkg/link").symlink_to("../a.py")
    manifest = scan_once(Workspace([folder])).manifest
    listed = {entry.path: (entry.kind.value, entry.target) for entry in manifest}
    assert listed == {
        "project": ("dir", ""), "project/a.py": ("file", ""), "project/bad\udcff.py": ("file", ""),
        "project/empty": ("dir", ""), "project/pkg": ("dir", ""), "project/pkg/b.py": ("file", ""),
        "project/pkg/link": ("link", "../a.py"),
    }  # fmt: skip
    entry = manifest.get("project/a.py")
    assert entry is not None
    assert (entry.mode, entry.size) == (0o750, 1)


SECOND_NS = 1_000_000_000
LOOKED_NS = 100 * SECOND_NS
"""When a file was read that had been changed long before."""


@pytest.mark.parametrize(
    ("what", "is_still"),
    [
        ({}, True),
        ({"size": 2}, False),
        ({"mtime_ns": 51 * SECOND_NS}, False),
        ({"ctime_ns": 51 * SECOND_NS}, False),  # the time of its content was set back
    ],
)
def test_what_tells_a_changed_file(what: dict[str, int], is_still: bool) -> None:
    then = {"size": 1, "mtime_ns": 50 * SECOND_NS, "ctime_ns": 50 * SECOND_NS}
    reading = READ.Reading(**then, digest=b"", read_ns=LOOKED_NS, local="a")
    assert reading.is_still(_status(**{**then, **what})) is is_still


@pytest.mark.parametrize("young", ["mtime_ns", "ctime_ns"])
@pytest.mark.parametrize("after_ns", [-5 * SECOND_NS, 0, 1_000_000])
def test_a_file_as_young_as_the_look_at_it_is_read_again(young: str, after_ns: int) -> None:
    """It may be written once more within the same tick of the file system's clock."""
    then = {"size": 1, "mtime_ns": 50 * SECOND_NS, "ctime_ns": 50 * SECOND_NS}
    then[young] = LOOKED_NS - after_ns
    reading = READ.Reading(**then, digest=b"", read_ns=LOOKED_NS, local="a")
    assert not reading.is_still(_status(**then))


def _status(size: int, mtime_ns: int, ctime_ns: int) -> Any:
    return SimpleNamespace(st_size=size, st_mtime_ns=mtime_ns, st_ctime_ns=ctime_ns)


def test_what_cannot_travel_is_a_problem_not_an_error(folder: Path) -> None:
    write(folder, "good")
    (folder / "out").symlink_to(folder.parent)
    (folder / "up").symlink_to("../other")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        scan = scan_once(flat(folder))
    assert paths_of(scan) == ["good"]
    assert sorted(problem.path for problem in scan.problems) == ["out", "pipe", "socket", "up"]


def test_an_unreadable_file_is_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "good", "secret")

    def refuse(local: str, *more: object) -> object:
        if local.endswith("/secret"):
            raise PermissionError(13, "Permission denied")
        return real(local, *more)

    real = READ._read
    monkeypatch.setattr(READ, "_read", refuse)
    scan = scan_once(flat(folder))
    assert paths_of(scan) == ["good"]
    assert [str(problem) for problem in scan.problems] == ["secret: Permission denied"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceMissing, match="nowhere"):
        scan_once(Workspace([tmp_path / "nowhere"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceMissing, match="is not a directory"):
        scan_once(Workspace([tmp_path / "file"]))


@pytest.fixture
def each_folder_is_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "monarch_sync.scanning.identities._disk_of", lambda folder: os.stat(folder).st_ino
    )


@pytest.mark.usefixtures("each_folder_is_a_disk")
def test_an_empty_folder_in_place_of_the_one_that_was_there_is_not_taken_for_it(
    folder: Path,
) -> None:
    """A mount point whose disk is unmounted: else the next push would empty all hosts."""
    write(folder, "a.py")
    scanner = Scanner(flat(folder))
    looks = scanner.scan, lambda: scanner.rescan([folder / "a.py"])
    scanner.scan()
    folder.rename(folder.parent / "away")
    folder.mkdir()
    for look in looks:
        with pytest.raises(WorkspaceMissing, match="has one been unmounted"):
            look()
    write(folder, "b.py")  # one that holds something may be another: a fresh clone
    for look in looks:
        assert paths_of(look()) == ["b.py"]
    (folder / "b.py").unlink()  # the last file of the same folder was deleted
    for look in looks:
        assert paths_of(look()) == []


def test_a_folder_that_is_made_anew_may_be_empty(folder: Path) -> None:
    write(folder, "a.py")
    scanner = Scanner(flat(folder))
    scanner.scan()
    folder.rename(folder.parent / "away")
    folder.mkdir()
    assert paths_of(scanner.rescan([folder / "a.py"])) == []
    assert paths_of(scanner.scan()) == []


@pytest.mark.usefixtures("each_folder_is_a_disk")
def test_a_folder_that_gives_way_while_it_is_looked_at_is_not_an_empty_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "a.py")
    scanner = Scanner(flat(folder))
    scanner.scan()
    real = os.scandir

    def unmount_behind(path: Any = ".") -> Any:
        listing = real(path)
        if os.fspath(path) == os.fspath(folder) and (folder / "a.py").exists():
            folder.rename(folder.parent / "away")
            folder.mkdir()
        return listing

    monkeypatch.setattr(os, "scandir", unmount_behind)
    with pytest.raises(WorkspaceMissing, match="has one been unmounted"):
        scanner.scan()


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one moment without permission, or a stale mount, would empty all hosts."""
    write(folder, "a.py")
    real = os.scandir

    def refuse(path: Any = ".") -> Any:
        if os.fspath(path) == os.fspath(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    scanner = Scanner(flat(folder))
    scanner.scan()
    with monkeypatch.context() as shut:
        shut.setattr(os, "scandir", refuse)
        for look in (scanner.scan, lambda: scanner.rescan([folder / "a.py"])):
            with pytest.raises(WorkspaceMissing, match="cannot be listed: Permission denied"):
                look()
    assert paths_of(scanner.scan()) == ["a.py"]


def test_what_is_never_taken(folder: Path) -> None:
    write(folder, "a.py", "__pycache__/a.pyc", "a.pyc", ".monarch/state", "env/pyvenv.cfg")
    write(folder, ".a.py.swp", "sub/y.py~", ".#a.py", "#a.py#", "sub/.y.py.swo")  # of editors
    write(folder, "env/lib/x.py", "sub/.venv/pyvenv.cfg", "sub/.venv/x.py", "sub/y.py")
    git(folder, "init")
    assert paths_of(scan_once(flat(folder))) == ["a.py", "sub/y.py"]


def test_git_rules_as_git_reads_them(folder: Path) -> None:
    git(folder, "init")
    write(folder, "a.log", "keep.log", "build/x", "sub/b.log", "sub/c.log", "deep/build/x", "x")
    write(
        folder, "secret", "sub/only/here", "other/only/here", "trail ", "#hash", "!bang", "nest/f"
    )
    write(
        folder,
        ".gitignore",
        content="*.log\n!keep.log\nbuild/\n/nest\n\\#hash\n\\!bang\ntrail\\ \n",
    )
    write(folder, "sub/.gitignore", content="!b.log\n/only\n")
    write(folder, ".git/info/exclude", content="secret\n")
    command = ["git", "ls-files", "-co", "-z", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert paths_of(scan_once(flat(folder))) == sorted(listed.strip("\0").split("\0"))


def test_rules_count_without_git_too(folder: Path) -> None:
    write(folder, "a.py", "a.log", "b.bin")
    write(folder, ".gitignore", content="*.log\n")
    write(folder, ".monarchignore", content="*.bin\n.*ignore\n")
    assert paths_of(scan_once(flat(folder))) == ["a.py"]


def test_tracked_files_come_though_ignored(folder: Path) -> None:
    git(folder, "init")
    write(folder, "out/tracked.txt", "out/other.txt", "a.py", "data/big.bin", "m.pyc")
    write(folder, ".gitignore", content="out/\n")
    git(folder, "add", "-f", "out/tracked.txt", "data/big.bin", "m.pyc")
    scanner = Scanner(flat(folder, ignore=("/data",)))
    expected = [".gitignore", "a.py", "out/tracked.txt"]
    assert paths_of(scanner.scan()) == expected
    write(folder, "out/third.txt")
    assert paths_of(scanner.rescan([folder / "out/third.txt", folder / "a.py"])) == expected


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_the_index_is_read_in_every_version(folder: Path, version: str) -> None:
    git(folder, "init")
    write(folder, "a", "dir/b", "dir/b2", os.fsdecode(b"\xff"), "dir/" + "long" * 60, "new")
    git(folder, "add", "a", "dir", os.fsdecode(b"\xff"))
    git(folder, "add", "--intent-to-add", "new")  # needs an extended entry, so version 3
    git(folder, "update-index", "--index-version", version)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, check=True)
    names = {os.fsdecode(name) for name in listed.stdout.strip(b"\0").split(b"\0")}
    assert tracked_paths(str(folder / ".git")) == names


def test_a_broken_index_is_not_one_that_tracks_nothing(folder: Path) -> None:
    assert tracked_paths(str(folder)) == frozenset(), "nothing was ever added"
    with pytest.raises(ValueError, match="not an index"):
        parse(b"JUNK" + bytes(100))
    write(folder, "index", content="DIRC")
    with pytest.raises(OSError, match="damaged"):
        tracked_paths(str(folder))


def test_a_second_work_tree_has_its_own_index(folder: Path, tmp_path: Path) -> None:
    git(folder, "init")
    write(folder, "out/kept", ".gitignore", content="out\n")
    git(folder, "add", "-f", ".")
    git(folder, "commit", "-m", "1")
    git(folder, "worktree", "add", str(tmp_path / "second"))
    assert paths_of(scan_once(flat(tmp_path / "second"))) == [".gitignore", "out/kept"]


def test_same_size_and_same_time_is_still_a_change(folder: Path) -> None:
    scanner = Scanner(flat(folder))
    write(folder, "a", content="1")
    before = scanner.scan().manifest
    status = (folder / "a").stat()
    write(folder, "a", content="2")
    os.utime(folder / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert scanner.scan().manifest != before


def test_a_known_file_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "old", "new")
    hour = 3_600_000_000_000
    now = (folder / "old").stat().st_ctime_ns
    monkeypatch.setattr(READ.time, "time_ns", lambda: now + hour)
    scanner = Scanner(flat(folder))
    scanner.scan()
    read: list[str] = []
    real = READ._read

    def note(local: str, *more: object) -> object:
        read.append(os.path.basename(local))
        return real(local, *more)

    monkeypatch.setattr(READ, "_read", note)
    write(folder, "new", content="other")
    scanner.rescan([folder / "new"])
    scanner.scan()
    assert read == ["new"]


def test_an_anchored_pattern_holds_in_a_rescan(folder: Path) -> None:
    write(folder, "data/big", "sub/data/x.py", "sub/k.py")
    scanner = Scanner(flat(folder, ignore=("/data",)))
    first = paths_of(scanner.scan())
    write(folder, "sub/k.py", content="2")
    assert first == paths_of(scanner.rescan([folder / "sub/k.py"])) == ["sub/data/x.py", "sub/k.py"]


def test_new_rules_change_what_is_taken(folder: Path) -> None:
    write(folder, "a.log", "b")
    scanner = Scanner(flat(folder))
    scanner.scan()
    write(folder, ".gitignore", content="*.log\n")
    assert paths_of(scanner.rescan([folder / ".gitignore"])) == [".gitignore", "b"]


places = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "x.log", "d/.gitignore"])
actions = st.tuples(st.sampled_from(["write", "delete", "move"]), places, places)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(actions, min_size=1, max_size=4), max_size=5))
def test_a_rescan_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[tuple[str, str, str]]]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    scanner = Scanner(flat(folder))
    scanner.scan()
    for burst in bursts:
        touched = {path for action in burst for path in perform(folder, *action)}
        assert scanner.rescan(touched).manifest == scan_once(flat(folder)).manifest


def perform(folder: Path, action: str, place: str, other: str) -> set[Path]:
    """Do something to the tree, if it can be done; the paths that a watcher would report."""
    path, target = folder / place, folder / other
    try:
        if action == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("*.log" if path.name == ".gitignore" else other)
        elif action == "move":
            path.rename(target)
        elif path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    except OSError:
        return set()
    made = {path, target} if action == "move" else {path}
    return made | {folder / parent for parent in Path(place).parents if str(parent) != "."}


def test_workspaces_compare_by_what_they_hold(folder: Path) -> None:
    assert Workspace([folder]) == Workspace({folder: "project"})
    assert Workspace([folder]) != flat(folder)
    assert Workspace.null() == Workspace() == Workspace(None, env=object())
    assert Workspace.null().folders == ()
    assert Workspace([folder, str(folder / "sub")]).dirs == {
        folder: "project",
        folder / "sub": "sub",
    }


@pytest.mark.parametrize("remote", ["/abs", "../up", "a/../b", "a\0"])
def test_a_remote_path_stays_inside(folder: Path, remote: str) -> None:
    with pytest.raises(ValueError, match="relative to the replica"):
        Workspace({folder: remote})


def test_what_a_workspace_refuses(folder: Path) -> None:
    with pytest.raises(ValueError, match="empty local path"):
        Workspace([""])
    with pytest.raises(ValueError, match="two folders"):
        Workspace([folder, folder / "sub" / "project"])
    with pytest.raises(ValueError, match="give a list"):
        Workspace(str(folder))
    with pytest.raises(ValueError, match="give a list"):
        Workspace(Path("a"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a list"):
        Workspace(ignore="*.log")
    with pytest.raises(ValueError, match="monarchignore"):
        Workspace([folder], ignore=["!keep"])


def test_one_folder_may_land_inside_another(folder: Path, tmp_path: Path) -> None:
    write(folder, "a", "lib/own")
    write(tmp_path / "shared", "b")
    scanner = Scanner(Workspace({folder: "", tmp_path / "shared": "lib"}))
    assert paths_of(scanner.scan()) == ["a", "lib/b", "lib/own"]
    write(folder, "new")
    assert paths_of(scanner.rescan([folder / "new"])) == ["a", "lib/b", "lib/own", "new"]


def test_a_problem_is_forgotten_with_its_path(folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent)
    scanner = Scanner(flat(folder))
    assert len(scanner.scan().problems) == 1
    (folder / "out").unlink()
    assert scanner.rescan([folder / "out"]).problems == []
