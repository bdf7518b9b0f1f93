"""``monarch env`` and ``monarch stacks``, asked of procs of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from monarch.actor import ProcMesh, this_host
from monarch.cli.commands import cli
from monarch.runtime import process
from tests.debugger.held_actors import Stepper
from tests.debugger.typist import visit_self
from tests.support import wait_for


@pytest.fixture
def procs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcMesh]:
    """Four, of which the last is busy for good."""
    monkeypatch.setattr("monarch.cli.debug.debug.visit_here", visit_self)
    made = this_host().spawn_procs({"gpus": 4})
    stepper = made.spawn("stepper", Stepper)
    stepper.echo.call(0).get(timeout=20)
    stepper.slice(gpus=3).loops.broadcast()
    yield made
    agent: Any = process.current()
    agent.host_agent._later_env._set.clear()


def monarch(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def lines(*words: str) -> list[str]:
    done = monarch(*words)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_what_is_set_on_one_rank_is_marked_and_unset_again(procs: ProcMesh) -> None:
    (told,) = lines("env", "set", "MT_ONE=1")
    assert told.startswith("MT_ONE set in procs 0-3, and in procs that start later; counts ")
    lines("env", "set", "MT_ONE=2", "3")
    first, second = lines("env", "get", "MT_ONE")
    assert first.split()[:4] == ["MT_ONE", "1", "ranks", "0-2"]
    assert "(set by " in first
    assert second.split()[:3] == ["2", "rank", "3"]
    assert "<- odd one out" in second
    (row,) = lines("env", "list", "MT_*", "--ranks", "0-2")
    assert row.split()[:4] == ["MT_ONE", "1", "ranks", "0-2"]
    assert "MT_ONE" in "\n".join(lines("env", "diff"))
    assert "MT_ONE" not in "\n".join(lines("env", "diff", "0", "1"))
    assert "here" in "\n".join(lines("env", "diff", "--against", "local"))
    lines("env", "unset", "MT_ONE")
    assert "(not set)" in lines("env", "get", "MT_ONE")[0]
    assert lines("env", "list", "MT_*") == ["no variable matches MT_*"]


def test_later_procs_have_what_was_set_and_get_says_who_set_it(procs: ProcMesh) -> None:
    lines("env", "set", "MT_LATER=x", "--new-only")
    assert procs.env("MT_LATER")["MT_LATER"] == dict.fromkeys(range(4))
    later = this_host().spawn_procs({"gpus": 1}, name="later")
    assert later.env("MT_LATER")["MT_LATER"] == {0: "x"}
    shown = "\n".join(lines("env", "get", "MT_LATER", "--mesh", "later"))
    assert "set by " in shown


def test_secrets_are_hidden_and_can_be_compared(procs: ProcMesh) -> None:
    lines("env", "set", "MT_API_TOKEN=sesame")
    lines("env", "set", "MT_API_TOKEN=barley", "2")
    shown = "\n".join(lines("env", "get", "MT_API_TOKEN"))
    assert "sesame" not in shown
    assert "barley" not in shown
    assert "ranks 0-1,3" in shown
    assert "rank 2" in shown


def test_versions_of_all_ranks_are_one_row_where_they_agree(procs: ProcMesh) -> None:
    rows = lines("env", "--versions")
    (python,) = [row for row in rows if row.startswith("python ")]
    assert "ranks 0-3" in python


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("env", "set", "MT-X=1"), "give NAME=VALUE..."),
        (("env", "unset", "MT_X=1"), "give NAME..."),
        (("env", "get", "HOME", "--ranks", "1,"), "names no ranks"),
        (("env", "diff", "0"), "give two ranks"),
        (("stacks", "x"), "names no ranks"),
    ],
)
def test_what_is_typed_wrong_is_a_usage_error(words: tuple[str, ...], says: str) -> None:
    done = monarch(*words)
    assert done.exit_code == 2
    assert says in done.output


def test_ranks_that_are_not_there_are_told_in_a_line(procs: ProcMesh) -> None:
    from monarch.errors import JobError

    done = monarch("env", "get", "HOME", "--ranks", "9")
    assert isinstance(done.exception, JobError)
    assert "none of the procs that run: procs 0-3" in str(done.exception)
    assert "none of the procs that run" in str(monarch("stacks", "9").exception)


def test_stacks_of_equal_ranks_are_shown_once_and_those_of_busy_ones_too(procs: ProcMesh) -> None:
    # The call was only sent so far.
    wait_for(lambda: "stepper in loops, rank 3" in lines("stacks"), what="the busy rank")
    shown = "\n".join(lines("stacks", "--locals"))
    assert "stepper, ranks 0-2\n    idle" in shown
    assert "stepper in loops, rank 3" in shown
    assert "in Stepper.loops" in shown or "in loops" in shown
    assert "turns = " in shown
    only = "\n".join(lines("stacks", "3"))
    assert "idle" not in only
    assert "turns = " not in only
