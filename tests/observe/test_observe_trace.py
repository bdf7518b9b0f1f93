"""One trace of all ranks, for Perfetto."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, span, this_host
from monarch.config import configured
from monarch.observe.query import live_rows
from monarch.observe.trace import MeshTrace
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.runtime.observe.drain import pack, pack_lines

SECONDS = 60.0


class Traced(Actor):
    @endpoint
    def step(self) -> None:
        with span("forward"):
            pass

    @endpoint
    def multiply(self, until: str) -> None:
        import torch

        torch.set_num_threads(1)
        torch.ones(8, 8) @ torch.ones(8, 8)
        while not os.path.exists(until):
            torch.ones(8, 8) @ torch.ones(8, 8)


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    made = this_host().spawn_procs({"gpus": 2})
    yield made
    made.stop().get(timeout=SECONDS)


def visit() -> MeshVisit:
    return MeshVisit(client().node, hosts_of(client()))


def test_a_process_a_rank_and_an_arrow_from_each_call_to_its_endpoint(
    procs: ProcMesh, tmp_path: Path
) -> None:
    procs.spawn("traced", Traced).step.call().get(timeout=SECONDS)
    look = visit()
    made = MeshTrace([*look.drain().packed, live_rows(look.look(flight=True))])
    made.write(tmp_path / "trace.json.gz")
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    ranks = [pid for pid, name in names.items() if name.startswith("procs ")]
    assert len(ranks) == 2
    (the_client,) = [pid for pid, name in names.items() if name.startswith("client")]
    steps = [e for e in events if e["ph"] == "X" and e["name"] == "step"]
    assert sorted(e["pid"] for e in steps) == sorted(ranks)
    for step in steps:
        inner = [e for e in events if e["name"] == "forward" and e["pid"] == step["pid"]]
        assert len(inner) == 1
        assert step["ts"] <= inner[0]["ts"] <= step["ts"] + step["dur"]
        arrows = [
            e for e in events
            if e["ph"] == "f" and e["pid"] == step["pid"] and abs(e["ts"] - step["ts"]) < 0.01
        ]  # fmt: skip
        assert len(arrows) == 1
        (begin,) = [e for e in events if e["ph"] == "s" and e["id"] == arrows[0]["id"]]
        assert begin["pid"] == the_client
        assert begin["ts"] <= arrows[0]["ts"]
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "traced" in threads
    assert all(isinstance(e["tid"], int) for e in events)


def test_hosts_whose_clocks_differ_are_put_into_one_order() -> None:
    """The second host's clock began 50 s earlier: its call, sent last, is drawn last."""
    ms = 1_000_000
    rows = [
        {"k": "proc", "p": "a", "t": 0, "offset": 0, "name": "a 0", "mesh": "m", "rank": 0,
         "host": "one"},
        {"k": "proc", "p": "b", "t": 0, "offset": 0, "name": "a 1", "mesh": "m", "rank": 1,
         "host": "two"},
        {"k": "clock", "host": "one", "offset": 1000 * ms, "run": 0},
        {"k": "clock", "host": "two", "offset": -49_000 * ms, "run": 20_000},
        {"k": "call", "p": "a", "t": 10 * ms, "mesh": "x", "rank": 0, "method": "f", "port": 1,
         "sender": "z", "run": ms, "wait": 0, "ok": True, "generation": 0},
        {"k": "call", "p": "b", "t": 50_012 * ms, "mesh": "x", "rank": 1, "method": "f", "port": 1,
         "sender": "z", "run": ms, "wait": 0, "ok": True, "generation": 0},
    ]  # fmt: skip
    made = MeshTrace([pack_lines(rows)])
    begins = {e["pid"]: e["ts"] for e in made.events() if e["ph"] == "X"}
    assert list(begins.values()) == [0.0, 2000.0]
    assert made.clock_error_us == 20.0


def test_torchs_trace_is_laid_beside_by_its_own_epoch() -> None:
    rows = [
        {"k": "proc", "p": "a", "t": 0, "offset": 5_000_000_000, "name": "a 0", "mesh": "m",
         "rank": 0, "host": "one"},
        {"k": "span", "p": "a", "t": 1_000_000, "mesh": "x", "rank": 0, "method": "s", "run": 0},
    ]  # fmt: skip
    made = MeshTrace([pack_lines(rows)])
    theirs = {
        "baseTimeNanoseconds": 5_000_000_000,
        "traceEvents": [
            {"ph": "X", "name": "aten::mm", "ts": 1500.0, "dur": 3, "pid": 9, "tid": 8}
        ],
    }
    made.add_torch("a", pack(json.dumps(theirs).encode()))
    (event,) = [e for e in made.events() if e["name"] == "aten::mm"]
    assert (event["pid"], event["ts"]) == (1, 500.0)


@pytest.mark.slow
def test_torchs_profiler_runs_in_procs_while_their_actors_work(
    procs: ProcMesh, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    actors = procs.spawn("traced", Traced)
    actors.multiply.call(str(tmp_path)).get(timeout=60)
    look = visit()
    asked = actors.multiply.call(str(tmp_path / "stop"))
    (host,) = look.look()
    found = look.profile(host["procs"], 0.3)
    (tmp_path / "stop").touch()
    asked.get(timeout=60)
    made = MeshTrace(look.drain().packed)
    for uid, (data, error) in found.items():
        assert not error
        made.add_torch(uid, data)
    operators = {e["pid"] for e in made.events() if e["name"] == "aten::mm"}
    assert len(operators) == 2


@pytest.mark.long
def test_a_proc_without_torch_says_so() -> None:
    # Procs would have it from birth, where a host has learned it from those of another test.
    with configured(learn_imports=False):
        procs = this_host().spawn_procs({"gpus": 2})
    procs.spawn("traced", Traced).step.call().get(timeout=SECONDS)
    look = visit()
    (host,) = look.look()
    found = look.profile(host["procs"], 0.1)
    assert [error for _, error in found.values()] == ["this proc has not imported torch"] * 2
    procs.stop().get(timeout=SECONDS)
