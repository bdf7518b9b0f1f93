"""Where a replica keeps its state: beside its folder, or, where that cannot be, in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from monarch_sync import Replica, Scanner, Workspace
from monarch_sync.messages import Committed
from monarch_sync.replicas.state_folder import find_state_folder, make_state_folder
from tests.sync.author import Author
from tests.sync.trees import push_tree, read_tree, whole


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "project"


def test_nothing_but_the_workspace_shows(root: Path) -> None:
    assert find_state_folder(root) is None
    replica = Replica(root)
    assert list(root.iterdir()) == []
    push_tree(replica, 1, {"a": b"1", "b/c": b"2"})
    assert sorted(os.listdir(root)) == ["a", "b"]
    assert replica.state_folder == root.with_name(".project.monarch") == find_state_folder(root)
    replica.close()


def test_one_folder_has_one_state_by_whatever_name(root: Path, tmp_path: Path) -> None:
    made = make_state_folder(root)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to(root)
    assert make_state_folder(tmp_path / "elsewhere/link") == made
    assert make_state_folder(f"{root}/") == made


def test_a_state_that_is_in_the_folder_stays_there(root: Path) -> None:
    (root / ".monarch").mkdir(parents=True)
    assert make_state_folder(root) == root / ".monarch"
    assert not root.with_name(".project.monarch").exists()


def _fail(*_: Any) -> None:
    raise OSError("cross-device link")


@pytest.mark.parametrize("step", ["mkdir", "rename"])
def test_where_beside_cannot_be_it_is_inside(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    root.mkdir()
    with monkeypatch.context() as patched:
        if step == "rename":
            patched.setattr(Path, "rename", _fail)
        else:
            make = Path.mkdir
            patched.setattr(
                Path, "mkdir", lambda at, **kw: _fail() if at.parent != root else make(at, **kw)
            )
        assert make_state_folder(root) == root / ".monarch"
    assert os.listdir(root.parent) == ["project"], "nothing is left of the attempt"
    replica = Replica(root)
    assert isinstance(push_tree(replica, 1, {"a": b"1"}), Committed)
    assert read_tree(root).keys() > {"a"}
    replica.close()


def test_it_is_inside_where_the_name_beside_would_be_too_long(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 250)
    replica = Replica(root)
    assert replica.state_folder == root / ".monarch"
    replica.close()


def test_what_others_put_there_is_not_taken_for_ours(root: Path, tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    root.with_name(".project.monarch").symlink_to(tmp_path / "trap")
    assert make_state_folder(root) == root / ".monarch"
    assert list((tmp_path / "trap").iterdir()) == []


def test_a_folder_that_was_taken_away_comes_back_whole(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "b").mkdir(parents=True)
    (source / "a").write_bytes(b"1")
    (source / "b/c").write_bytes(b"2")
    author = Author(source, Replica(root))
    author.push()
    shutil.rmtree(root)
    (source / "a").write_bytes(b"3")
    author.push()
    assert read_tree(root) == whole({"a": b"3", "b/c": b"2"})
    author.replica.close()


def test_what_is_known_of_a_folder_that_is_gone_is_not_believed(root: Path) -> None:
    first = Replica(root)
    push_tree(first, 7, {"a": b"1"})
    first.close()
    shutil.rmtree(root)
    again = Replica(root)
    assert (again.generation, len(again.manifest)) == (0, 0)
    again.close()


def test_the_state_of_another_replica_is_no_part_of_a_workspace(root: Path, tmp_path: Path) -> None:
    replica = Replica(root)
    push_tree(replica, 1, {"a": b"1"})
    replica.close()
    scan = Scanner(Workspace({tmp_path: ""})).scan()
    assert [entry.path for entry in scan.manifest] == ["project", "project/a"]
    assert not scan.problems


@pytest.mark.parametrize("part", ["stage", "store", "environment.old"])
def test_links_among_a_replicas_own_files_are_refused(tmp_path: Path, part: str) -> None:
    """It would remove what lies behind them, as it does with its own."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    Replica(tmp_path / "w").close()
    state = find_state_folder(tmp_path / "w")
    assert state is not None
    if (state / part).is_dir():
        (state / part).rename(tmp_path / "before")
    (state / part).symlink_to(precious)
    with pytest.raises(PermissionError, match="no links among its own files"):
        Replica(tmp_path / "w")
    assert (precious / "file").read_text() == "mine"


def test_a_link_is_not_taken_for_a_state_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "stage").mkdir(parents=True)
    (tmp_path / "elsewhere" / "stage" / "file").write_text("mine")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".monarch").symlink_to(tmp_path / "elsewhere")
    Replica(tmp_path / "w").close()
    assert (tmp_path / "elsewhere" / "stage" / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["stage"]
