"""Who waits for whom, in a mesh that runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.cli.observe.views import RankActions
from monarch.config import configured
from monarch.observe.hang_report import HangReport, hang_report, holds_of, settled_report
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.view.live_view import LiveView
from monarch.wire.message import HoldLine
from tests.observe.test_observe_top import HOLD, host
from tests.support import wait_for

SECONDS = 60.0


class Inner(Actor):
    @endpoint
    def read(self, path: str) -> int:
        while not os.path.exists(path):
            time.sleep(0.005)
        return 1


class Outer(Actor):
    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    @endpoint
    def step(self, path: str) -> int:
        return self.inner.read.choose(path).get(timeout=SECONDS)  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 3})
    yield made
    made.stop().get(timeout=SECONDS)


def report() -> HangReport:
    return hang_report(MeshVisit(client().node, hosts_of(client())).look(flight=True))


def test_a_chain_of_waits_ends_with_who_does_something(procs: ProcMesh, tmp_path: Path) -> None:
    inner = procs.slice(gpus=2).spawn("loader", Inner)
    outer = procs.slice(gpus=slice(0, 2)).spawn("trainer", Outer, inner)
    path = tmp_path / "go"
    asked = outer.step.call(str(path))

    def both_wait() -> HangReport | None:
        found = report()
        is_read = all(
            text.startswith("runs read") and text.endswith("1 message waits")
            for text in found.doing.values()
        )
        return found if len(found.waits) == 4 and is_read else None

    found = wait_for(both_wait)
    assert not found.is_hang
    assert found.lines[0].startswith("client waits ")
    assert "for trainer 0-1 (step)" in found.lines[0]
    assert any(
        line.startswith("trainer 0-1 wait ") and "for loader 0 (read)" in line
        for line in found.lines
    )
    (doing,) = found.doing.values()
    assert doing.startswith("runs read for")
    path.touch()
    asked.get(timeout=SECONDS)
    assert report().lines == ["nobody waits for anybody"]


class Stopping(Actor):
    @endpoint
    def step(self) -> int:
        breakpoint()
        return 7


@pytest.mark.long
def test_a_call_that_stands_is_told_by_all_views_and_so_is_where_it_stands(
    procs: ProcMesh,
) -> None:
    with configured(breakpoint="wait"):
        stopping = procs.slice(gpus=1).spawn("stopping", Stopping)
        asked = stopping.step.call_one()
        found = wait_for(lambda: (now := report()).held and now)
        assert re.fullmatch(
            r"stopping 0 at test_observe_hang.py:\d+ in \w+.step \(breakpoint\(\)\); "
            "`monarch debug` opens it",
            found.held[0],
        )
        assert not found.is_hang
        visit = MeshVisit(client().node, hosts_of(client()))
        snapshot = LiveView().update(visit.look(), time.time())
        (rank,) = [one for one in snapshot["ranks"] if one["actor"] == "stopping"]
        assert (rank["status"], rank["doing"]) == ("held", snapshot["holds"][0]["place"])
        stacks = RankActions(visit).do("stacks", [rank["uid"]])
        assert "stopping in step, rank 0" in stacks
        assert f"{__file__}:" in stacks
        ((proc, _, _), hold), node = *holds_of(visit.look()).items(), client().node
        go_on = node.ask(node.address_of(proc), HoldLine(hold.id, "c", "me"))
        assert go_on.wait(SECONDS)
        assert asked.get(timeout=SECONDS) == 7
        wait_for(lambda: not report().held)


def in_collectives(**last: int) -> list[dict[str, Any]]:
    """Two ranks in all_reduces, of which each has begun the ``last`` one."""
    found = host(2)
    for proc, seq in zip(found["procs"], last.values(), strict=True):
        entries = [
            {
                "group": "0", "group_name": "dp", "seq": at, "is_p2p": False, "op": "all_reduce",
                "sizes": [[9]], "dtypes": ["Float"], "done": at < seq, "place": "",
            }
            for at in range(1, seq + 1)
        ]  # fmt: skip
        proc["flight"] = {"rank": proc["rank"], "entries": entries}
    return [found]


def test_a_rank_that_was_on_its_way_to_a_collective_is_no_hang() -> None:
    paused: list[int] = []
    late = hang_report(in_collectives(first=5, other=4))
    assert late.is_hang
    goes_on = settled_report(
        late, lambda: in_collectives(first=7, other=8), lambda: paused.append(1)
    )
    assert not goes_on.is_hang
    assert paused == [1]
    stands = settled_report(late, lambda: in_collectives(first=5, other=4), lambda: None)
    assert stands.is_hang
    assert "rank 1 has not come (last: #4 all_reduce)" in stands.lines[0]


def test_a_rank_that_is_held_on_its_way_to_a_collective_is_no_hang() -> None:
    looks = in_collectives(first=5, other=4)
    looks[0]["holds"] = [HOLD]
    found = hang_report(looks)
    assert not found.is_hang
    last = "rank 1 has not come (last: #4 all_reduce): it is held"
    assert found.lines[-1].startswith("under way: group dp, collective #5: rank 0 in all_reduce")
    assert found.lines[-1].endswith(last)
    looks[0]["holds"] = [{**HOLD, "proc": "p0", "rank": 0}]  # The other, which waits, is no excuse.
    assert hang_report(looks).is_hang


def test_a_view_tells_of_a_late_rank_once_it_is_seen_twice_and_between_looks() -> None:
    view = LiveView()
    assert not view.update(in_collectives(first=5, other=4), 1.0)["is_hang"]
    assert not view.update(in_collectives(first=8, other=9), 2.0)["is_hang"]
    assert view.update(in_collectives(first=8, other=9), 3.0)["is_hang"]
    assert view.update([host(2)], 4.0)["is_hang"]
    assert not view.update(in_collectives(first=10, other=10), 5.0)["is_hang"]


class Rank(Actor):
    @endpoint
    def join(self, rank: int, path: str) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)

    @endpoint
    def meet(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        for _ in range(2):
            dist.all_reduce(torch.ones(9))
        if rank == 0:
            dist.all_reduce(torch.ones(9))
        elif rank == 2:
            dist.broadcast(torch.ones(7), 1)


@pytest.mark.long
def test_the_collective_in_which_ranks_do_not_meet_is_named(
    procs: ProcMesh, tmp_path: Path
) -> None:
    """Rank 1 skips an all_reduce, and rank 2 broadcasts."""
    pytest.importorskip("torch")
    ranks = procs.spawn("rank", Rank)
    members = [ranks.slice(gpus=rank) for rank in range(3)]
    joined = [m.join.call_one(rank, str(tmp_path / "store")) for rank, m in enumerate(members)]
    for one in joined:
        one.get(timeout=60)
    asked = [member.meet.call_one(rank) for rank, member in enumerate(members)]
    asked[1].get(timeout=60)

    def both_wait() -> HangReport | None:
        found = report()
        return found if found.mismatches and len(found.mismatches[0].by_kind) == 2 else None

    found = wait_for(both_wait, 60.0)
    (mismatch,) = found.mismatches
    assert mismatch.seq == 3
    assert list(mismatch.by_kind.values()) == [[0], [2]]
    assert list(mismatch.missing) == [1]
    assert "all_reduce [9]" in mismatch.text
    assert "broadcast [7]" in mismatch.text
    assert f"{__file__}:" in mismatch.text
    assert found.is_hang


def test_what_a_part_of_a_run_says_that_it_waits_for_is_told() -> None:
    notice = {"key": "waits run-1", "kind": "waiting", "text": "group 0 waits for group 1"}
    looks = [{"url": "one", "notices": [notice]}, {"url": "two", "notices": [notice]}]
    report = hang_report(looks)
    assert report.lines == ["group 0 waits for group 1"]
    assert report.to_data()["told"] == ["group 0 waits for group 1"]
    assert not report.is_hang
