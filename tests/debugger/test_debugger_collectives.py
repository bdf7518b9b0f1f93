"""A rank is held while others wait for it in a collective: what is told, refused, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, ProcMesh, endpoint, this_host
from tests.debugger.typist import console, wait_for_holds
from tests.support import wait_for

pytest.importorskip("torch")

_USUAL_SECONDS = 77.0


class Meeting(Actor):
    """Ranks of one gloo group."""

    def __init__(self, path: str) -> None:
        self._path = path

    @endpoint
    def begin(self, rank: int) -> None:
        import datetime

        import torch.distributed as dist
        import torch.testing._internal.distributed.fake_pg  # noqa: F401, it makes itself known

        store = dist.FileStore(self._path, 3)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=3,
            timeout=datetime.timedelta(seconds=_USUAL_SECONDS),
        )  # fmt: skip
        # As TorchTitan makes one of each dimension that has one rank; it has no timeout.
        dist.new_group([rank], backend="fake", use_local_synchronization=True)

    @endpoint
    def meet(self, late: int, rank: int) -> float:
        import torch
        import torch.distributed as dist

        if rank == late:
            breakpoint()
        total = torch.ones(1)
        dist.all_reduce(total)
        return float(total)


class Timeouts(Actor):
    """Tells what the groups of its process have."""

    @endpoint
    def all(self) -> list[float]:
        from monarch.runtime.observe.process_groups import _backends

        return [backend.options._timeout.total_seconds() for backend in _backends()]


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 3})


@pytest.fixture
def meeting(procs: ProcMesh, tmp_path: Path) -> Any:
    """They have met once."""
    made = procs.spawn("meeting", Meeting, str(tmp_path / "store"))
    for begun in asked(made, "begin"):
        begun.get(timeout=60)
    for met in asked(made, "meet", -1):
        assert met.get(timeout=60) == 3.0
    return made


def asked(meeting: Any, name: str, *args: Any) -> list[Any]:
    """What the three of them answer."""
    return [getattr(meeting.slice(gpus=r), name).call_one(*args, r) for r in range(3)]


@pytest.mark.long
def test_a_rank_that_waits_in_a_collective_is_looked_at_there(meeting: Any) -> None:
    answers = asked(meeting, "meet", 1)
    wait_for_holds(1)
    wait_for(lambda: "meeting ranks 0,2" in console("where"))
    line = Path(__file__).read_text().partition("        dist.all_reduce(total)")[0].count("\n") + 1
    shown = console(
        "attach meeting 2", "p rank, late", "p total.tolist()", "n", "down", "down", "up", "w",
        "detach", "attach meeting 0", "p rank", "c",
    )  # fmt: skip
    where = f"in meet, test_debugger_collectives.py:{line}, in all_reduce"
    for rank in (0, 2):
        assert f"meeting {rank} runs, and is not held: {where}\n" in shown
    assert "(peek) p rank, late\n(2, 1)\n" in shown
    assert "(peek) p total.tolist()\n[1.0]\n" in shown
    assert "(peek) p rank\n0\n" in shown
    assert "`stop` holds it" in shown
    # Further in is torch, as far as there is more.
    inside = [text for text in shown.splitlines() if text.startswith("> ")]
    assert all("torch/distributed/" in text for text in inside[:2]), inside
    assert f"  {__file__}({line})meet()" in shown
    # To look changes nothing: they wait on, and meet.
    assert not any(answer.done() for answer in answers)
    assert [hold.rank for hold in wait_for_holds(1)] == [1]
    console("continue")
    assert [answer.get(timeout=60) for answer in answers] == [3.0] * 3


@pytest.mark.long
def test_others_wait_in_a_collective_for_one_that_is_held(procs: ProcMesh, meeting: Any) -> None:
    timeouts = procs.spawn("timeouts", Timeouts)

    def seconds() -> list[float]:
        return [one for found in timeouts.all.call().get(timeout=60).values() for one in found]

    assert seconds() == [_USUAL_SECONDS] * 3

    answers = asked(meeting, "meet", 1)
    wait_for_holds(1)
    wait_for(lambda: "meeting ranks 0,2" in console("where"))
    shown = console("where")
    assert "in all_reduce #2: waits for meeting 1, held before it" in shown
    assert "collective #2: ranks 0, 2 in all_reduce [1]" in shown
    assert "rank 1 has not come (last: #1 all_reduce)" in shown
    refused = "meeting 0,2 in all_reduce #2, where meeting 1 is missing"
    assert f"Error processing command: redo is refused: {refused}" in console("redo")
    shown = console("attach meeting 1", "redo", "n", "detach")
    assert "not held, and run on until they need this one: ranks 0,2 in all_reduce" in shown
    assert f"redo is refused: {refused}" in shown
    wait_for(lambda: seconds() == [86400.0] * 3)
    console("continue")
    assert [answer.get(timeout=60) for answer in answers] == [3.0] * 3
    wait_for(lambda: seconds() == [_USUAL_SECONDS] * 3)

    answers = asked(meeting, "meet", 1)
    wait_for_holds(1)
    wait_for(lambda: "meeting ranks 0,2" in console("where"))
    assert "ranks 0,2: process groups ended" in console("abort 0,2")
    for rank in (0, 2):
        with pytest.raises(ActorError):
            answers[rank].get(timeout=60)
    console("continue")
    # Then it stands at the error, as a call does that was held before.
    wait_for(lambda: [hold.reason for hold in wait_for_holds(1)] == ["error"])
    console("continue")
    with pytest.raises(ActorError):
        answers[1].get(timeout=60)
