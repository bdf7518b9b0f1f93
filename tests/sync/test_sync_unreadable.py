"""What the author cannot read is not gone: hosts keep what they have of it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_sync import Manifest, Replica, Scanner, SyncReport, Workspace, sync_local
from monarch_sync.report import Problem
from monarch_sync.scanning.explain import explain
from monarch_sync.scanning.unreadable import filled
from tests.privileges import unprivileged
from tests.sync.trees import Tree, manifest_of, plant, read_tree, trees, whole

TREE: Tree = {
    "plain": b"1",
    "secret": b"2",
    "closed/b": b"3",
    "closed/deep/c": b"4",
    "open/closed/d": b"5",
    "open/e": b"6",
}


@pytest.fixture
def planted(folder: Path) -> Iterator[Path]:
    plant(folder, TREE)
    yield folder
    _open_up(folder)


def _open_up(folder: Path) -> None:
    for path in (folder, *(folder / name for name in ("closed", "open", "open/closed"))):
        if path.is_dir():
            path.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o644)


def _push(folder: Path, replica: Replica) -> SyncReport:
    return unprivileged(lambda: sync_local(Workspace({folder: ""}), replica))


def _lines(report: SyncReport) -> list[str]:
    lines = [line.strip() for line in str(report).splitlines()]
    return [line for line in lines if line.startswith(("hosts keep ", "left out "))]


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("secret", 0, "secret: Permission denied"),
        ("closed", 0, "closed: cannot be listed: Permission denied"),
        ("closed", 0o444, "closed: cannot be listed: Permission denied"),
        ("closed", 0o111, "closed: cannot be listed: Permission denied"),
        ("open/closed", 0, "open/closed: cannot be listed: Permission denied"),
        ("closed/deep", 0, "closed/deep: cannot be listed: Permission denied"),
        ("closed/deep/c", 0, "closed/deep/c: Permission denied"),
    ],
)
def test_hosts_keep_what_cannot_be_read(
    path: str, mode: int, said: str, planted: Path, replica: Replica
) -> None:
    _push(planted, replica)
    (planted / path).chmod(mode)
    (planted / "plain").write_bytes(b"edited")
    (planted / "open/e").unlink()
    report = _push(planted, replica)
    assert _lines(report) == [f"hosts keep what they have of {said}"]
    assert not report.is_whole
    expected = whole({**TREE, "plain": b"edited"})
    del expected["open/e"]
    assert read_tree(replica.root) == expected
    assert (replica.root / path).stat().st_mode & 0o400, "its mode, too, is what it was"

    _open_up(planted)
    (planted / "secret").write_bytes(b"edited, too")
    shutil.rmtree(planted / "closed/deep")
    report = _push(planted, replica)
    assert (report.is_whole, report.problems) == (True, [])
    assert read_tree(replica.root) == read_tree(planted)


@pytest.mark.parametrize(
    ("closed", "folder_name", "new_name"),
    [
        ("open/e", "open", "moved"),
        ("open/closed", "open", "moved"),
        ("closed/deep/c", "closed", "open/inside"),
        ("closed/deep/c", "closed/deep", "new/deeper"),
    ],
)
def test_it_comes_along_with_its_folder_under_another_name(
    closed: str, folder_name: str, new_name: str, planted: Path, replica: Replica
) -> None:
    (planted / "open/link").symlink_to("../plain")
    _push(planted, replica)
    expected = read_tree(replica.root)
    (planted / closed).chmod(0)
    target = planted / new_name
    target.parent.mkdir(exist_ok=True)
    (planted / folder_name).rename(target)
    (planted / "plain").write_bytes(b"edited")
    report = _push(planted, replica)
    place = new_name + closed[len(folder_name) :]
    assert [(p.path, p.is_kept) for p in report.problems] == [(place, True)]
    moved = {
        new_name + path[len(folder_name) :] if _is_in(path, folder_name) else path: what
        for path, what in expected.items()
    }
    there = read_tree(replica.root)
    assert {path for path, _ in there.items()} == {*moved, *_above(new_name)}
    assert there[place] == moved[place]
    assert _push(planted, replica).changed_files == []
    (target / closed[len(folder_name) + 1 :]).chmod(0o755)
    assert _push(planted, replica).problems == []
    assert read_tree(replica.root) == read_tree(planted)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _above(path: str) -> list[str]:
    return ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]


def test_it_is_not_taken_for_what_another_folder_had(planted: Path, replica: Replica) -> None:
    plant(planted, {"one/a": b"1", "one/b": b"2", "two/a": b"3", "two/b": b"4"})
    _push(planted, replica)
    (planted / "two").rename(planted / "new")
    shutil.rmtree(planted / "one")
    (planted / "new/a").chmod(0)
    _push(planted, replica)
    assert (replica.root / "new/a").read_bytes() == b"3", "as new/b came from two/b"
    plant(planted, {"strange/a": b"5", "strange/other": b"6"})  # and nothing else
    (planted / "strange/a").chmod(0)
    report = _push(planted, replica)
    assert [(p.path, p.is_kept) for p in report.problems] == [("strange/a", False)]
    assert not (replica.root / "strange/a").exists()


def test_what_no_host_has_is_left_out_and_comes_later(planted: Path, replica: Replica) -> None:
    for path in ("secret", "closed"):
        (planted / path).chmod(0)
    report = _push(planted, replica)
    assert set(_lines(report)) == {
        "left out secret: Permission denied",
        "left out closed: cannot be listed: Permission denied",
    }
    assert not report.is_whole
    there = read_tree(replica.root)
    assert not {"secret", "closed"} & there.keys()
    _open_up(planted)
    assert _push(planted, replica).problems == []
    assert read_tree(replica.root) == whole(TREE)


def test_a_disk_that_fails_while_a_file_is_read_deletes_nothing(
    planted: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    _push(planted, replica)
    real = os.read

    def fail(fd: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(("/secret", "/deep/c")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size)

    monkeypatch.setattr("monarch_sync.scanning.readings.os.read", fail)
    report = _push(planted, replica)
    assert set(_lines(report)) == {
        f"hosts keep what they have of {path}: Input/output error"
        for path in ("secret", "closed/deep/c")
    }
    assert read_tree(replica.root) == whole(TREE)


@pytest.mark.parametrize("name", [".gitignore", ".monarchignore"])
def test_where_rules_cannot_be_read_nobody_knows_what_belongs(
    name: str, planted: Path, replica: Replica
) -> None:
    (planted / "closed" / name).write_bytes(b"*.log\n")
    (planted / "closed/private.log").write_bytes(b"")
    _push(planted, replica)
    before = read_tree(replica.root)
    (planted / "closed" / name).chmod(0)
    (planted / "plain").write_bytes(b"edited")
    report = _push(planted, replica)
    expected = f"closed: its {name} cannot be read: Permission denied"
    assert _lines(report) == [f"hosts keep what they have of {expected}"]
    assert read_tree(replica.root) == {**before, "plain": b"edited"}
    # The same of the whole workspace: what is ignored must not travel.
    (planted / name).write_bytes(b"secret\n")
    (planted / name).chmod(0)
    (planted / "plain").write_bytes(b"again")
    report = _push(planted, replica)
    assert _lines(report) == [
        f"hosts keep what they have of .: its {name} cannot be read: Permission denied"
    ]
    assert read_tree(replica.root) == {**before, "plain": b"edited"}


def _cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:60])


def _close(index: Path) -> None:
    index.chmod(0)


@pytest.mark.parametrize(("spoil", "why"), [(_cut, "it is damaged"), (_close, "Permission denied")])
def test_where_the_git_index_cannot_be_read_what_it_may_track_stays(
    spoil: Callable[[Path], None], why: str, planted: Path, replica: Replica
) -> None:
    index = planted / ".git/index"
    (planted / ".gitignore").write_bytes(b"*.log\n")
    for path in ("kept.log", "closed/kept.log"):
        (planted / path).write_bytes(b"7")
    for words in (["init"], ["add", "--force", "kept.log", "closed/kept.log", "plain"]):
        subprocess.run(["git", "-C", str(planted), *words], check=True, capture_output=True)
    _push(planted, replica)
    before = read_tree(replica.root)
    assert before["kept.log"] == b"7"
    sound = index.read_bytes()

    workspace = Workspace({planted: ""})
    scanner = Scanner(workspace)
    scanner.scan()
    spoil(index)
    (planted / "plain").write_bytes(b"edited")
    report = _push(planted, replica)
    assert len(_lines(report)) == 1
    assert _lines(report)[0].startswith(
        f"hosts keep what they have of .: the git index cannot be read ({why})"
    )
    assert read_tree(replica.root) == {**before, "plain": b"edited"}
    told = unprivileged(lambda: explain(workspace, planted / "kept.log"))
    assert (told.is_in, told.code) == (False, "unreadable")

    # Nobody tells when it can be read again.
    assert unprivileged(lambda: scanner.rescan([index])).problems
    index.chmod(0o644)
    index.write_bytes(sound)
    (planted / "kept.log").unlink()
    report = _push(planted, replica)
    assert (report.is_whole, report.problems) == (True, [])
    assert scanner.rescan([]).problems == []
    assert "kept.log" not in read_tree(replica.root)
    assert "closed/kept.log" in read_tree(replica.root)


def test_many_are_told_in_few_lines() -> None:
    problems = [Problem(f"out{number}", "is a pipe") for number in range(8)]
    problems += [Problem(f"kept{number}", "Stale", True, True) for number in range(12)]
    lines = _lines(SyncReport(problems=problems))
    assert lines[0] == "hosts keep what they have of kept0: Stale"
    assert lines[-2:] == ["hosts keep what they have of 2 more", "left out 8 more"]
    assert len(lines) == 12


def _close_file(folder: Path) -> None:
    (folder / "secret").chmod(0)


def _close_folder(folder: Path) -> None:
    (folder / "closed").chmod(0o444)


def _close_inner_folder(folder: Path) -> None:
    (folder / "open/closed").chmod(0)


@pytest.mark.parametrize("close", [_close_file, _close_folder, _close_inner_folder])
def test_who_looks_at_what_was_touched_finds_the_same(
    close: Callable[[Path], None], planted: Path
) -> None:
    workspace = Workspace({planted: ""})
    scanner = Scanner(workspace)
    base = scanner.scan().manifest
    close(planted)

    def look(*touched: Path) -> None:
        found = unprivileged(lambda: scanner.rescan(touched)).over(base)
        truth = unprivileged(Scanner(workspace).scan).over(base)
        assert found.manifest == truth.manifest
        assert set(found.problems) == set(truth.problems)
        found.manifest.check()

    look(planted / "secret", planted / "closed", planted / "open/closed")
    look()
    (planted / "plain").write_bytes(b"edited")
    look(planted / "plain")
    # Nobody tells that it is to be read again: of a mount that is back there is no event.
    _open_up(planted)
    look()
    assert scanner.rescan([]).problems == []


@given(base=trees, now=trees, paths=st.sets(st.sampled_from(["a", "b", "c.py", "a/b", "b/a/a"])))
def test_all_else_is_as_it_is_now(base: Tree, now: Tree, paths: set[str]) -> None:
    before, after = manifest_of(base), manifest_of(now)
    # A scan finds what cannot be read only in folders that are there.
    paths = {p for p in paths if "/" not in p or (after.get(p.rpartition("/")[0]) or _NONE).is_dir}
    inside = tuple(f"{path}/" for path in paths)
    seen = Manifest(e for e in after if e.path not in paths and not e.path.startswith(inside))
    # Of two, one in the other, only the outer one is found.
    paths = {path for path in paths if not any(path.startswith(above) for above in inside)}
    problems = [Problem(path, "closed", is_unreadable=True) for path in sorted(paths)]
    result, told = filled(seen, problems, before)
    result.check()
    for path in {*(e.path for e in before), *(e.path for e in after)}:
        is_closed = path in paths or path.startswith(inside)
        if is_closed and path not in before and (found := result.get(path)) is not None:
            # It came with its folder, which had another name.
            assert any((e.kind, e.digest) == (found.kind, found.digest) for e in before)
        else:
            assert result.get(path) == (before if is_closed else after).get(path)
    kept = {problem.path for problem in told if problem.is_kept}
    assert kept >= paths & {e.path for e in before}
    assert kept == {path for path in paths if path in result}


_NONE = next(iter(manifest_of({"file": b""})))


@pytest.mark.parametrize(
    ("closed", "path", "why"),
    [
        ("secret", "secret", "it cannot be read: Permission denied"),
        ("closed", "closed", "it cannot be listed: Permission denied"),
        ("closed", "closed/deep/c", "its folder closed/ cannot be listed: Permission denied"),
    ],
)
def test_explain_says_what_cannot_be_read(closed: str, path: str, why: str, planted: Path) -> None:
    (planted / closed).chmod(0)
    found = unprivileged(lambda: explain(Workspace({planted: ""}), planted / path))
    assert (found.is_in, found.code) == (False, "unreadable")
    assert found.reason == f"{why}; hosts keep what they have of it"


def test_an_ignored_file_that_cannot_be_read_is_ignored(planted: Path) -> None:
    (planted / ".gitignore").write_text("secret\n")
    (planted / "secret").chmod(0)
    found = unprivileged(lambda: explain(Workspace({planted: ""}), planted / "secret"))
    assert found.code == "ignored"
