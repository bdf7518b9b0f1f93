"""A run that holds, and waits for a fix, when its allocation is ended meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import MeshFailure, ProcMesh, this_host
from monarch.runs import LineDisplay
from monarch.runs.hold.holding import Holding
from monarch.runs.record.edits import Failure
from monarch.runs.record.record import Record
from monarch.runs.recover.deaths import Deaths
from monarch.runs.recover.ranks import RunLost
from monarch.runs.recover.recovery import BeginAgain
from monarch.runtime import process
from tests.actors import Echo
from tests.support import wait_for


class Ended:
    """An allocation that was ended."""

    def after_loss(self, hosts: Any, *, any_number: bool = False) -> Any:
        raise AssertionError("nobody begins again")

    def repair(self, *, is_loss_known: bool = True) -> None:
        raise AssertionError("there is nothing to bring up")

    def why_gone(self) -> str:
        return "the allocation was ended by monarch kill"


class Telling(LineDisplay):
    """Has a host die as soon as the run holds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, text: str) -> None:
        if text.startswith("holding"):
            threading.Thread(target=lose_the_host).start()


def lose_the_host() -> None:
    """As soon as the run looks for deaths."""
    wait_for(lambda: Deaths._open, what="the run waits")
    failure = MeshFailure("ddp", (0,), "its host was lost", "proc")
    monarch.actor.unhandled_fault_hook(failure)


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs()


@pytest.mark.timeout(60)
def test_a_run_that_holds_ends_when_its_allocation_is_ended(
    procs: ProcMesh, tmp_path: Path
) -> None:
    record = Record(tmp_path, Telling())
    record.edits.policy = "hold"
    record.allocation = Ended()
    holding = Holding(procs, procs.spawn("echo", Echo), record)
    now = process.current().generation
    failure = Failure("step 3", "NameError: labelz", generation=now, good=now - 1)
    with pytest.raises(RunLost, match=r"^the allocation was ended by monarch kill$"):
        holding._wait(failure, in_place=True)


class BroughtUp(Ended):
    """Its hosts come up again, and a watch pushes the fix as soon as they are there."""

    def __init__(self) -> None:
        self.generation_before = process.current().generation

    def repair(self, *, is_loss_known: bool = True) -> None:
        process.current().generation = self.generation_before + 1

    def why_gone(self) -> str:
        return ""


@pytest.mark.timeout(60)
def test_a_host_that_dies_while_a_run_holds_is_brought_up_for_the_mend(
    procs: ProcMesh, tmp_path: Path
) -> None:
    """Once it was brought up when the run went on, which was after the fix: it waited for ever."""
    record = Record(tmp_path, Telling())
    record.edits.policy = "hold"
    record.allocation = allocation = BroughtUp()
    holding = Holding(procs, procs.spawn("echo", Echo), record)
    now = allocation.generation_before
    failure = Failure("step 3", "NameError: labelz", generation=now, good=now - 1)
    try:
        with pytest.raises(BeginAgain):
            holding._wait(failure, in_place=True)
    finally:
        process.current().generation = now
