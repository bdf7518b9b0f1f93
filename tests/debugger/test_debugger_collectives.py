"""A rank is held while others wait for it in a collective: what is told, refused, and ended."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, ActorError, endpoint, this_host
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

        store = dist.FileStore(self._path, 3)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=3,
            timeout=datetime.timedelta(seconds=_USUAL_SECONDS),
        )  # fmt: skip

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


@pytest.mark.long
def test_others_wait_in_a_collective_for_one_that_is_held(tmp_path: Any) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    meeting = procs.spawn("meeting", Meeting, str(tmp_path / "store"))
    timeouts = procs.spawn("timeouts", Timeouts)

    def asked(name: str, *args: Any) -> list[Any]:
        return [getattr(meeting.slice(gpus=r), name).call_one(*args, r) for r in range(3)]

    def seconds() -> list[float]:
        return [one for found in timeouts.all.call().get(timeout=60).values() for one in found]

    for begun in asked("begin"):
        begun.get(timeout=60)
    for met in asked("meet", -1):
        assert met.get(timeout=60) == 3.0
    assert seconds() == [_USUAL_SECONDS] * 3

    answers = asked("meet", 1)
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

    answers = asked("meet", 1)
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
