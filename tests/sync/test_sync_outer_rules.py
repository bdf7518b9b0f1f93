"""What decides from outside which files belong to a workspace: no change of it is missed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from monarch_sync.ignoring.ignore import OUTER_NAMES
from monarch_sync.watching.outer_rules import OuterRules

DEADLINE_SECONDS = 10.0
Looked = list[str]
LONG_AGO = -(10**18)
"""The tick with which folders count as changed long ago, however young they are."""


def age(folder: Path) -> None:
    """See that the next change of a folder bears another time than the last one."""
    before = folder.stat().st_ctime_ns
    deadline = time.monotonic() + DEADLINE_SECONDS
    while folder.stat().st_ctime_ns == before:
        assert time.monotonic() < deadline
        (folder / "scratch").write_bytes(b"")
        (folder / "scratch").unlink()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    """Which names were looked for."""
    looked: Looked = []
    real = os.path.lexists

    def lexists(path: str) -> bool:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "lexists", lexists)
    return looked


def own(looked: Looked, folder: Path) -> set[str]:
    """Where names were looked for, but for folders that other programs change too, as /tmp."""
    return {where for where in map(os.path.dirname, looked) if where.startswith(str(folder.parent))}


@pytest.mark.parametrize("name", OUTER_NAMES)
def test_rules_that_come_change_or_go_above_are_seen(folder: Path, name: str) -> None:
    above = folder.parent
    rules = OuterRules(folder, (), LONG_AGO)
    assert not rules.have_changed()
    age(above)
    (above / name).write_text("*.log")
    assert rules.have_changed()
    rules = OuterRules(folder, (), LONG_AGO)
    assert not rules.have_changed()
    (above / name).write_text("*.log and more")
    assert rules.have_changed()
    rules = OuterRules(folder, (), LONG_AGO)
    age(above)
    (above / name).unlink()
    assert rules.have_changed()


@pytest.mark.parametrize("where", ["", ".."])
def test_a_repository_that_begins_or_ends_is_seen(folder: Path, where: str) -> None:
    top = folder.parent if where else folder
    rules = OuterRules(folder, (), LONG_AGO)
    age(top)
    (top / ".git").mkdir()
    assert rules.have_changed()
    rules = OuterRules(folder, (), LONG_AGO)
    assert not rules.have_changed()
    (top / ".git").rmdir()
    assert rules.have_changed()
    (folder.parent / "elsewhere").mkdir()
    rules = OuterRules(folder, (), LONG_AGO)
    age(top)
    (top / ".git").write_text("gitdir: elsewhere")
    assert rules.have_changed()
    rules = OuterRules(folder, (), LONG_AGO)
    assert not rules.have_changed()
    (top / ".git").write_text("gitdir: another place")
    assert rules.have_changed()


def test_a_link_that_leads_to_rules_is_seen_once_they_are_there(folder: Path) -> None:
    (folder.parent / ".gitignore").symlink_to("far/rules")
    (folder.parent / "far").mkdir()
    rules = OuterRules(folder, (), LONG_AGO)
    assert not rules.have_changed()
    (folder.parent / "far/rules").write_text("*.log")
    assert rules.have_changed()


def test_where_nothing_has_come_or_gone_no_name_is_looked_for(folder: Path, looked: Looked) -> None:
    rules = OuterRules(folder, (), LONG_AGO)
    looked.clear()
    assert not rules.have_changed()
    assert own(looked, folder) == set()
    age(folder.parent)
    assert not rules.have_changed()
    assert own(looked, folder) == {str(folder.parent)}


def test_a_folder_that_has_just_changed_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change may bear the same time, where the file system counts in seconds."""
    above = folder.parent
    same, real = above.stat(), os.stat
    monkeypatch.setattr(
        os, "stat", lambda path: same if os.fspath(path) == str(above) else real(path)
    )
    rules = OuterRules(folder, ())
    (above / ".gitignore").write_text("*.log")
    assert rules.have_changed()


def test_nor_is_one_of_a_file_system_that_is_not_known(
    folder: Path, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "monarch_sync.watching.outer_rules.tells_all", lambda path: path != str(folder.parent)
    )
    rules = OuterRules(folder, (), LONG_AGO)
    looked.clear()
    assert not rules.have_changed()
    assert own(looked, folder) == {str(folder.parent)}
