"""What cannot be prepared in place is imported once a push and host, however many ranks ask."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

import monarch.runtime.workspace.shared_trial as shared_trial
from monarch.runtime.workspace.shared_trial import SharedTrial
from monarch_reload import ReloadError
from monarch_reload.trial.spare import NewState

STATE = NewState({"/p/a.py": b"A = 1 / 0\n"}, [("a", "/p/a.py")], ["/p"])
REFUSED = ReloadError("ZeroDivisionError", phase="run", path="/p/a.py", line=1, text="A = 1 / 0")


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_trial, "runtime_dir", lambda: str(tmp_path))


class Counting:
    """A fresh process that takes a while."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.answer: ReloadError | None = REFUSED
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, state: NewState) -> ReloadError | None:
        self.num_asked += 1
        assert self.may_answer.wait(30)
        return self.answer


def trial(spare: Counting, push: str = "first") -> SharedTrial:
    made = SharedTrial(spare)
    made.push = push
    return made


def test_ranks_that_ask_at_once_have_one_answer() -> None:
    spare, said = Counting(), []
    spare.may_answer.clear()
    ranks = [threading.Thread(target=lambda: said.append(trial(spare)(STATE))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    spare.may_answer.set()
    for rank in ranks:
        rank.join(30)
    assert spare.num_asked == 1
    assert [(one.message, one.path, one.line, one.text) for one in said if one] == [
        ("ZeroDivisionError", "/p/a.py", 1, "A = 1 / 0")
    ] * 4


def test_that_it_can_be_imported_is_an_answer_too() -> None:
    spare = Counting()
    spare.answer = None
    assert trial(spare)(STATE) is None
    spare.answer = REFUSED
    assert trial(spare)(STATE) is None


@pytest.mark.parametrize(
    "other",
    [
        {"files": {"/p/a.py": b"A = 1\n"}},
        {"files": {"/p/a.py": None}},
        {"modules": [("a", "/p/a.py"), ("b", "/p/b.py")]},
        {"path": ["/q", "/p"]},
    ],
)
def test_another_question_is_asked(other: dict[str, object]) -> None:
    spare = Counting()
    trial(spare)(STATE)
    trial(spare)(msgspec.structs.replace(STATE, **other))  # type: ignore[arg-type]
    assert spare.num_asked == 2


def test_another_push_asks_anew() -> None:
    """What lies on disk, or is installed, may have changed."""
    spare = Counting()
    for push in ("first", "second", "", ""):
        trial(spare, push)(STATE)
    assert spare.num_asked == 4


def test_one_that_cannot_be_asked_leaves_no_answer() -> None:
    spare = Counting()
    broken = SharedTrial(lambda state: (_ for _ in ()).throw(OSError("no memory")))
    broken.push = "first"
    with pytest.raises(OSError, match="no memory"):
        broken(STATE)
    assert trial(spare)(STATE) is not None
