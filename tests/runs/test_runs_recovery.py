from __future__ import annotations

import io
from pathlib import Path

import pytest

import monarch.actor
from monarch.config_file import ConfigError
from monarch.errors import ActorError, MeshFailure, MonarchError, SupervisionError
from monarch.observe.json_rows import json_rows
from monarch.runs import LineDisplay, Record
from monarch.runs.recover.ranks import RankHangs, RunFailed
from monarch.runs.recover.recovery import (
    BeginAgain,
    RanksLost,
    StepMade,
    noticing_losses,
    with_restarts,
)
from monarch.runs.recover.restarts import Restarts


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path, LineDisplay(io.StringIO()))


def test_what_is_lost_is_begun_again_and_told(record: Record) -> None:
    num_attempts = 0

    def attempt(step_made: StepMade) -> str:
        nonlocal num_attempts
        num_attempts += 1
        for step in (3, 4):
            step_made(step)
        if num_attempts == 1:
            raise RanksLost("hung", "step 5 hangs\nrank 0 waits")
        return "done"

    assert with_restarts(attempt, Restarts(2), record) == "done"
    hung, respawned = json_rows(record.folder / "events.jsonl")
    assert hung["kind"] == "hung"
    assert hung["text"] == "step 5 hangs; restart 1 of 2\nrank 0 waits"
    assert (respawned["kind"], respawned["step"]) == ("respawned", 3)
    assert respawned["text"].endswith("s later, from step 3; steps 3 to 4 are made again")


@pytest.mark.parametrize("num_steps", [0, 4])
def test_what_was_mended_is_not_told_once_more(record: Record, num_steps: int) -> None:
    tries = iter([BeginAgain("step 5 failed on generation 2: NameError"), None])

    def attempt(step_made: StepMade) -> str:
        if (mended := next(tries)) is not None:
            if num_steps:
                step_made(num_steps)
            raise mended
        return "done"

    assert with_restarts(attempt, Restarts(0), record) == "done"
    (begun_again,) = json_rows(record.folder / "events.jsonl")
    where = ", from the last checkpoint" if num_steps else ""
    assert begun_again["text"] == f"all begin again in new processes{where}"
    assert begun_again["why"] == "step 5 failed on generation 2: NameError"


def test_without_progress_it_gives_up(record: Record) -> None:
    def attempt(step_made: StepMade) -> None:
        raise RanksLost("died", "rank 1 died")

    with pytest.raises(RunFailed, match="rank 1 died\ngiving up after 1 restarts"):
        with_restarts(attempt, Restarts(1), record)


def test_who_stops_between_two_attempts_need_not_wait(record: Record) -> None:
    num_attempts = 0

    def attempt(step_made: StepMade) -> None:
        nonlocal num_attempts
        num_attempts += 1
        record.stop()
        raise RanksLost("died", "rank 1 died")

    with pytest.raises(KeyboardInterrupt):
        with_restarts(attempt, Restarts(5), record)
    assert num_attempts == 1
    assert [row["kind"] for row in json_rows(record.folder / "events.jsonl")] == ["died"]


def test_other_errors_are_not_for_a_restart(record: Record) -> None:
    def attempt(step_made: StepMade) -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        with_restarts(attempt, Restarts(5), record)
    assert not (record.folder / "events.jsonl").exists()


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("error", "expected", "told"),
    [
        (RankHangs("rank 1 hangs"), RanksLost, "rank 1 hangs"),
        (ActorError(ValueError("bad")), RunFailed, "^ValueError: bad\nValueError: bad"),
        (ActorError(MonarchError("it says all")), RunFailed, "^it says all$"),
        (ActorError(ConfigError("is odd", key="size")), RunFailed, "^'size' is odd$"),
    ],
)
def test_what_a_call_raises_says_whether_a_restart_may_help(
    error: Exception, expected: type[Exception], told: str
) -> None:
    with pytest.raises(expected, match=told), noticing_losses():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        SupervisionError("the proc is gone"),
        ActorError(RuntimeError("[gloo/transport/tcp/pair.cc] Connection reset by peer")),
        ActorError(ConnectionResetError("gone")),
    ],
)
def test_a_death_that_is_told_meanwhile_is_the_reason(error: Exception) -> None:
    failure = MeshFailure("ddp", (1,), "it was killed by SIGKILL", "proc")

    def lose_a_rank() -> None:
        with noticing_losses():
            monarch.actor.unhandled_fault_hook(failure)
            raise error

    with pytest.raises(RanksLost, match="rank 1 died: it was killed by SIGKILL") as caught:
        lose_a_rank()
    assert caught.value.kind == "died"
