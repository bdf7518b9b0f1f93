"""Large files of a workspace: who is asked, when, and what comes of each answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from monarch.cli.large_files import LargeFiles, NotSent
from monarch_sync import SyncReport, Workspace, scan
from monarch_sync.tree.large_files import review, reviewed_by


class Pushing:
    """A project, and pushes of it that send all that it has."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "project"
        (self.folder / "data").mkdir(parents=True)
        (self.folder / "task.py").write_text("")
        (self.folder / "data/a [1].pt").write_text("x" * 100)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.answers: list[str] = []
        self._known = folder / "known.json"
        self._monkeypatch = monkeypatch

    def push(self, *, has_terminal: bool, is_agreed: bool = False) -> list[str]:
        """What was sent."""
        self._monkeypatch.setattr("monarch.cli.large_files.is_somebody_there", lambda: has_terminal)
        self._monkeypatch.setattr(click, "prompt", self._answer)
        workspace = Workspace({self.folder: ""})
        sent: list[str] = []

        def push() -> SyncReport:
            files = [entry for entry in scan(workspace).manifest if entry.is_file]
            review(entry for entry in files if entry.size >= 100)
            sent.extend(entry.path for entry in files)
            return SyncReport(generation=1)

        large = LargeFiles(
            lambda text, files: self.said.append(text), is_agreed=is_agreed, file=self._known
        )
        assert large.pushing(workspace, push).generation == 1
        return sent

    def _answer(self, question: str, **how: object) -> str:
        self.asked.append(question)
        return self.answers.pop(0)


@pytest.fixture
def pushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushing:
    return Pushing(tmp_path, monkeypatch)


ALL = ["data/a [1].pt", "task.py"]


def test_where_nobody_can_be_asked_it_is_said_once_and_goes_on(pushing: Pushing) -> None:
    assert pushing.push(has_terminal=False) == ALL
    (said,) = pushing.said
    assert said == (
        "a large file goes to every host:\n"
        "     100 B  data/a [1].pt\n"
        f"To keep it here, add\n    /data/a\\ \\[1\\].pt\nto {pushing.folder}/.monarchignore"
    )
    assert pushing.push(has_terminal=False) == ALL
    assert len(pushing.said) == 1
    (pushing.folder / "b.pt").write_text("y" * 200)
    pushing.push(has_terminal=False)
    assert "b.pt" in pushing.said[1]
    assert "a [1].pt" not in pushing.said[1]


def test_who_agrees_is_not_asked_again(pushing: Pushing) -> None:
    pushing.answers = ["y"]
    assert pushing.push(has_terminal=True) == ALL
    assert pushing.push(has_terminal=True) == ALL
    assert len(pushing.asked) == 1


def test_a_no_sends_nothing_and_is_asked_again(
    pushing: Pushing, capsys: pytest.CaptureFixture[str]
) -> None:
    pushing.answers = ["n", "n"]
    for _ in range(2):
        with pytest.raises(NotSent, match=r"nothing was sent\. To keep it here, add"):
            pushing.push(has_terminal=True)
    assert len(pushing.asked) == 2
    assert "100 B  data/a [1].pt" in capsys.readouterr().out


@pytest.mark.parametrize("before", ["", "*.log", "*.log\n"])
def test_what_is_to_be_ignored_stays_here(pushing: Pushing, before: str) -> None:
    ignore = pushing.folder / ".monarchignore"
    if before:
        ignore.write_text(before)
    pushing.answers = ["i"]
    assert pushing.push(has_terminal=True) == [".monarchignore", "task.py"]
    assert ignore.read_text() == f"{before.strip()}\n".lstrip() + "/data/a\\ \\[1\\].pt\n"


def test_who_agreed_beforehand_is_asked_and_told_nothing(pushing: Pushing) -> None:
    assert pushing.push(has_terminal=True, is_agreed=True) == ALL
    assert (pushing.asked, pushing.said) == ([], [])


def test_what_a_review_raises_is_only_for_the_pushes_within(pushing: Pushing) -> None:
    raising: Callable[[object], None] = pytest.fail
    with reviewed_by(raising):
        review([])
    review(scan(Workspace({pushing.folder: ""})).manifest)
