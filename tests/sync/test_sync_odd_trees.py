"""Trees that resist being looked at: what may not be read, clocks that are wrong, names by half."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from monarch_sync import Manifest, Replica, Scan, Scanner, Watcher, Workspace
from monarch_sync import scan as scan_once
from monarch_sync.scanning import readings as readings_module
from monarch_sync.scanning.explain import explain
from monarch_sync.scanning.looking import Looking
from monarch_sync.scanning.readings import Readings
from monarch_sync.tree.entry import TOO_DEEP
from tests.privileges import unprivileged
from tests.sync.trees import push_tree

DAY = 86_400


def by_path(scan: Scan) -> dict[str, str]:
    return {problem.path: problem.reason for problem in scan.problems}


def test_what_may_not_be_read_is_named_and_the_rest_comes_along(folder: Path) -> None:
    for path in ("open/a", "closed/b", "closed/deep/c", "secret", "plain"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"1")
    scanner = Scanner(Workspace({folder: "code"}))
    assert scanner.scan().problems == []
    (folder / "closed").chmod(0)
    (folder / "secret").chmod(0)
    expected = {
        "code/closed": "cannot be listed: Permission denied",
        "code/secret": "Permission denied",
    }
    try:
        for look in (
            lambda: scan_once(scanner.workspace),
            scanner.scan,
            lambda: scanner.rescan([folder / "closed", folder / "secret"]),
        ):
            scan = unprivileged(look)
            assert by_path(scan) == expected
            assert [entry.path for entry in scan.manifest if entry.is_file] == [
                "code/open/a", "code/plain",
            ]  # fmt: skip
    finally:
        (folder / "closed").chmod(0o755)
    (folder / "secret").chmod(0o644)
    scan = scanner.rescan([])
    assert scan.problems == []
    assert scan.manifest.num_files == 5


def test_a_folder_that_may_not_be_read_is_no_end_of_the_watch(folder: Path) -> None:
    (folder / "closed/deep").mkdir(parents=True)
    (folder / "closed").chmod(0)
    watcher = Watcher(Workspace({folder: ""}))
    try:
        assert unprivileged(watcher.changes) is None
        assert watcher.polls_because == ""
        (folder / "a").write_bytes(b"1")
        assert unprivileged(watcher.changes) == {folder / "a"}
        (folder / "closed").chmod(0o755)
        assert unprivileged(watcher.changes) is None, "nothing vouches for what is in it"
        (folder / "closed/deep/b").write_bytes(b"1")
        assert unprivileged(watcher.changes) == {folder / "closed/deep/b"}
        # One that is closed while it is watched, and gets a new folder meanwhile.
        (folder / "closed").chmod(0)
        (folder / "closed/new").mkdir()
        assert unprivileged(watcher.changes) == {folder / "closed", folder / "closed/new"}
        (folder / "closed").chmod(0o755)
        assert unprivileged(watcher.changes) is None
        (folder / "closed/new/c").write_bytes(b"1")
        assert unprivileged(watcher.changes) == {folder / "closed/new/c"}
    finally:
        (folder / "closed").chmod(0o755)
        watcher.close()


def test_who_iterates_is_woken_where_a_folder_is_open_again_and_nothing_tells(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a mount that was stale."""
    (folder / "stale").mkdir()
    real = os.scandir
    is_stale = True

    def scandir(path: Any = ".") -> Any:
        if is_stale and os.fspath(path) == f"{folder}/stale":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    watcher = Watcher(Workspace({folder: ""}))
    told = iter(watcher)
    assert next(told) == set()
    (folder / "a").write_bytes(b"1")
    assert next(told) == {folder / "a"}
    is_stale = False
    assert next(told) == set(), "a look at everything"
    (folder / "stale/b").write_bytes(b"1")
    assert next(told) == {folder / "stale/b"}
    watcher.close()
    assert list(told) == []


@pytest.mark.parametrize("skew", [-DAY, DAY])
def test_times_that_are_off_by_a_day_hide_no_edit(folder: Path, skew: int) -> None:
    at = time.time_ns() + skew * 1_000_000_000
    path = folder / "a"
    path.write_bytes(b"1")
    os.utime(path, ns=(at, at))
    scanner = Scanner(Workspace({folder: ""}))
    scanner.scan()
    for content in (b"2", b"3", b"4"):
        path.write_bytes(content)
        os.utime(path, ns=(at, at))  # the same size and the same time, again and again
        told = scanner.rescan([path]) if content == b"3" else scanner.scan()
        assert told.manifest == scan_once(scanner.workspace).manifest
        assert scanner.contents.whole(next(iter(told.manifest))) == content


@pytest.mark.parametrize("skew", [-DAY, DAY])
def test_a_clock_that_is_off_by_a_day_hides_no_edit(
    folder: Path, skew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The author's clock, against that of the file system."""
    real = time.time_ns
    monkeypatch.setattr(readings_module.time, "time_ns", lambda: real() + skew * 1_000_000_000)
    scanner = Scanner(Workspace({folder: ""}))
    path = folder / "a"
    for content in (b"1", b"2", b"3"):
        path.write_bytes(content)
        scan = scanner.rescan([path])
        assert scanner.contents.whole(next(iter(scan.manifest))) == content
        threading.Event().wait(0.03)  # longer than a tick of the file system's clock


@pytest.mark.parametrize("skews", [(0, -DAY, 0), (0, DAY, 0), (DAY, 0, -DAY)])
def test_a_hosts_clock_that_jumps_by_a_day_hides_no_edit(
    replica: Replica, skews: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what comes, nor what somebody did there; nor does Python run old bytecode."""
    real, real_ns = time.time, time.time_ns
    module = replica.root / "m.py"
    for number, skew in enumerate(skews, 1):
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda skew=skew: real() + skew)
            clock.setattr(time, "time_ns", lambda skew=skew: real_ns() + skew * 1_000_000_000)
            push_tree(replica, number, {"m.py": b"print(%d)" % number, "data": b"%d" % number})
        ran = subprocess.run([sys.executable, str(module)], capture_output=True, check=True)
        assert ran.stdout == b"%d\n" % number
        command = [sys.executable, "-c", "import m"]
        ran = subprocess.run(command, cwd=replica.root, capture_output=True, check=True)
        assert ran.stdout == b"%d\n" % number
        at = (replica.root / "data").stat().st_mtime_ns
        (replica.root / "data").write_bytes(b"x")
        os.utime(replica.root / "data", ns=(at, at))
    kept = [path.read_bytes() for path in replica.root.glob("data.host-*")]
    assert kept == [b"x"]
    assert [past.generation for past in replica.past()] == [3, 2, 1]


def test_a_file_that_vanishes_between_the_listing_and_the_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(b"1")
    real = Readings.look

    def look(self: Readings, local: str, *more: object) -> object:
        if local.endswith("/b") or local.endswith("/c"):
            os.unlink(local)
        return real(self, local, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Readings, "look", look)
    scan = scan_once(Workspace({folder: ""}))
    assert [entry.path for entry in scan.manifest] == ["a"]
    assert scan.problems == []


@pytest.mark.parametrize("becomes", ["nothing", "a link to another folder"])
def test_a_folder_goes_and_its_name_leads_elsewhere_between_two_looks(
    folder: Path, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host takes a file whose folder has no entry."""
    for name in ("a", "d/e/f", "other/e/f"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")
    real = Looking.entry

    def look(self: Looking, path: str, *more: object) -> object:
        if path == "d" and becomes == "nothing":
            raise FileNotFoundError
        if path == "d":
            (folder / "d").rename(folder / "gone")
            (folder / "d").symlink_to("other")
        return real(self, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Looking, "entry", look)
    manifest = scan_once(Workspace({folder: ""})).manifest
    manifest.check()
    assert "d/e/f" not in manifest
    assert {"a", "other/e/f"} <= {entry.path for entry in manifest}


def test_a_folder_within_a_new_one_leads_elsewhere_between_two_looks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is new, too: and the next look finds nothing in it that is not there."""
    scanner = Scanner(Workspace({folder: ""}))
    (folder / "other").mkdir()
    (folder / "other/f").write_bytes(b"1")
    scanner.scan()
    real_walk, real_entry = Looking.walk, Looking.entry
    monkeypatch.setattr(Looking, "walk", lambda *one, **more: iter(list(real_walk(*one, **more))))

    def look(self: Looking, path: str, *more: object) -> object:
        if path == "d/e" and not (folder / "d/e").is_symlink():
            (folder / "d/e").rename(folder / "gone")
            (folder / "d/e").symlink_to("../other")
        return real_entry(self, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Looking, "entry", look)
    (folder / "d/e").mkdir(parents=True)
    (folder / "d/e/f").write_bytes(b"1")
    for _ in range(2):
        manifest = scanner.rescan([folder / "d", folder / "d/e"]).manifest
        manifest.check()
        assert manifest.below("d") == ["d/e"]


def test_folders_in_folders_without_end_are_named_and_the_rest_comes_along(
    folder: Path, replica: Replica
) -> None:
    scanner = Scanner(Workspace({folder: ""}))
    (folder / "a").write_bytes(b"1")
    scanner.scan()
    deep = folder.joinpath(*["d"] * 260)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"1")
    for look in (lambda: scanner.rescan([folder / "d"]), scanner.scan):
        scan = look()
        scan.manifest.check()
        assert set(by_path(scan).values()) == {"lies in more than 255 folders"}
        assert len(scan.manifest) == 1 + 256
        Manifest.decode(scan.manifest.encode())


@pytest.mark.long
def test_why_a_folder_too_deep_is_left_out(folder: Path) -> None:
    deep = folder.joinpath(*["dd"] * 257)
    deep.mkdir(parents=True)
    workspace = Workspace({folder: ""})
    assert TOO_DEEP in explain(workspace, deep).reason
    assert explain(workspace, folder.joinpath(*["dd"] * 256)).is_in
    assert by_path(scan_once(workspace)) == {str(deep.relative_to(folder)): TOO_DEEP}


def test_a_file_becomes_a_pipe_between_the_stat_and_the_opening(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"1")
    real = Readings.look

    def look(self: Readings, local: str, *more: object) -> object:
        os.unlink(local)
        os.mkfifo(local)
        return real(self, local, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Readings, "look", look)
        scan_once(Workspace({folder: ""}))  # and does not wait for somebody to write
    assert "a" in by_path(scan_once(Workspace({folder: ""})))


def test_a_rename_that_changes_only_the_case(folder: Path) -> None:
    (folder / "Pkg").mkdir()
    (folder / "Pkg/Mod.py").write_bytes(b"1")
    scanner, watcher = Scanner(Workspace({folder: ""})), Watcher(Workspace({folder: ""}))
    watcher.changes()
    scanner.scan()
    for old, new in (("Pkg/Mod.py", "Pkg/mod.py"), ("Pkg", "pkg")):
        (folder / old).rename(folder / new)
        touched = watcher.changes()
        assert touched == {folder / old, folder / new}
        assert scanner.rescan(touched).manifest == scan_once(scanner.workspace).manifest
    watcher.close()


def test_a_second_name_from_outside_is_seen_at_the_next_look(folder: Path, tmp_path: Path) -> None:
    """No event tells of it: the folder that it was written through is not ours."""
    (folder / "a").write_bytes(b"1")
    outside = tmp_path / "outside"
    scanner, watcher = Scanner(Workspace({folder: ""})), Watcher(Workspace({folder: ""}))
    outside.hardlink_to(folder / "a")
    watcher.changes()
    scanner.scan()
    outside.write_bytes(b"22")
    touched = watcher.changes()
    assert touched == set()
    assert scanner.rescan(touched).manifest == scan_once(scanner.workspace).manifest
    watcher.close()


@pytest.mark.huge
def test_one_edit_among_200_000_files(folder: Path) -> None:
    for i in range(2000):
        (folder / f"d{i}").mkdir()
        for k in range(100):
            (folder / f"d{i}/{k}").write_bytes(b"%d" % k)
    scanner, watcher = Scanner(Workspace({folder: ""})), Watcher(Workspace({folder: ""}))
    assert watcher.changes() is None
    assert watcher.polls_because == ""
    assert scanner.scan().manifest.num_files == 200_000
    (folder / "d7/7").write_bytes(b"edited")
    (folder / "d8").rename(folder / "e8")
    touched = watcher.changes()
    assert touched == {folder / "d7/7", folder / "d8", folder / "e8"}
    assert scanner.rescan(touched).manifest == scan_once(scanner.workspace).manifest
    watcher.close()
