from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from monarch.runs.recover import witness
from monarch.runs.recover.modules_run import ModulesRun, who_left_out_what
from monarch.runs.recover.witness import RankStack, Witness, tell_hang
from monarch.version import OUR_FOLDER


def test_who_hangs_is_named_first_and_every_stack_follows() -> None:
    stacks = [
        RankStack(0, "thread a:\n  in backward", True),
        RankStack(1, "thread b:\n  in sleep", False),
        RankStack(2, "", False),
    ]
    lines = tell_hang(stacks[:2], "step 7", 30).splitlines()
    assert lines[0] == "step 7 has not ended within 30 s: rank 1 hangs, and the others wait for it"
    assert lines[1:4] == ["rank 0 waits", "thread a:", "  in backward"]
    assert lines[4] == "rank 1 hangs"
    told = tell_hang(stacks, "step 7", 30)
    assert "ranks 1, 2 hang" in told
    assert told.endswith("rank 2 does not answer: it is stopped, or holds the GIL")


def test_ranks_that_all_wait_do_not_match() -> None:
    told = tell_hang([RankStack(0, "x", True), RankStack(1, "y", True)], "the evaluation", 5)
    assert "all ranks wait for each other: they are in collectives that do not match" in told


def test_who_has_answered_does_not_hang() -> None:
    stacks = [RankStack(0, "it does nothing", False), RankStack(1, "in loop", False)]
    told = tell_hang(stacks, "step 3", 8.0)
    assert told.splitlines()[0] == (
        "step 3 has not ended within 8 s: rank 1 hangs, and the others wait for it"
    )
    assert "rank 0 has answered" in told


@pytest.mark.parametrize("place", ["beside monarch", "in the library"])
def test_what_is_installed_is_seen_at_its_work(place: str) -> None:
    """Of a recipe in site-packages, which lie beside the runtime, and without a venv in the
    library's own folder."""
    folder = {
        "beside monarch": OUR_FOLDER.rstrip(os.sep),
        "in the library": os.path.join(os.path.dirname(os.__file__), "site-packages", "monarch"),
    }[place]
    text = "def hang(is_there, done):\n    is_there.set()\n    done.wait()\n"
    code = compile(text, f"{folder}_recipes/mine.py", "exec")
    module = types.ModuleType("mine")
    exec(code, module.__dict__)
    is_there, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=module.hang, args=(is_there, done))
    thread.start()
    try:
        assert is_there.wait(30)
        text, is_waiting, _ = asyncio.run(Witness().stack())
    finally:
        done.set()
        thread.join()
    assert "_recipes/mine.py" in text
    assert not is_waiting


class _Group:
    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


@pytest.mark.parametrize("group", ["none", "alone", "with another"])
def test_who_is_alone_waits_for_nobody(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a backward pass, or in a collective of a group of one, is no other rank to wait for."""
    c10d = types.ModuleType("torch.distributed.distributed_c10d")
    sizes = {"none": [], "alone": [1], "with another": [1, 2]}[group]
    pg_map = {_Group(size): None for size in sizes}
    vars(c10d)["_world"] = types.SimpleNamespace(pg_map=pg_map)
    monkeypatch.setitem(sys.modules, c10d.__name__, c10d)
    monkeypatch.delitem(sys.modules, "torchft", raising=False)
    inner, outer = types.ModuleType("inner"), types.ModuleType("outer")
    text = "def hang(is_there, done):\n    is_there.set()\n    done.wait()\n"
    exec(compile(text, "/x/torch/autograd/graph.py", "exec"), inner.__dict__)
    exec(compile("def step(*a):\n    hang(*a)\n", "/home/me/task.py", "exec"), outer.__dict__)
    outer.__dict__["hang"] = inner.__dict__["hang"]
    is_there, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=outer.__dict__["step"], args=(is_there, done))
    thread.start()
    try:
        assert is_there.wait(30)
        text, is_waiting, _ = asyncio.run(Witness().stack())
        look = witness.look_here(0)
    finally:
        done.set()
        thread.join()
    assert (is_waiting, look.is_waiting) == (group == "with another",) * 2
    told = tell_hang([RankStack(0, text, is_waiting)], "step 2", 5.0).splitlines()[0]
    assert "match" not in told
    if group != "with another":
        assert told == "step 2 has not ended within 5 s: rank 0 hangs"


BLOCKS = "blocks.0", "blocks.1", "blocks.2", "head"


def test_who_left_out_a_part_of_a_sharded_model_is_named() -> None:
    """One is in the part that the other has passed over; or is past all parts."""
    in_it = ModulesRun(BLOCKS, BLOCKS[:2])
    further = ModulesRun(BLOCKS, ("blocks.0", "blocks.2"))
    at_its_end = ModulesRun(BLOCKS, ("blocks.0", "blocks.1", "blocks.2"), True)
    in_the_last = ModulesRun(BLOCKS, BLOCKS)
    assert who_left_out_what([(0, in_it), (1, further)]) == "rank 1 did not run blocks.1"
    assert who_left_out_what([(0, in_the_last), (1, at_its_end)]) == "rank 1 did not run head"
    assert who_left_out_what([(0, in_it), (1, ModulesRun(BLOCKS, BLOCKS[:1]))]) == ""
    assert who_left_out_what([(0, in_it), (1, ModulesRun())]) == ""
    stacks = [RankStack(0, "x", True, in_it), RankStack(1, "y", True, further)]
    told = tell_hang(stacks, "step 7", 30).splitlines()[0]
    assert told.endswith("all ranks wait for each other: rank 1 did not run blocks.1")


SHARDED = """
import json, sys, torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from monarch.runs.recover.modules_run import modules_run_here

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x, skipped):
        for number, block in enumerate(self.blocks):
            x = block(x) if number != skipped else x
        look()
        return self.head(x)

def look():
    seen = modules_run_here()
    print(json.dumps([sorted(seen.parts), sorted(seen.run), sorted(seen.left_out())]))

store = distributed.FileStore(sys.argv[1], 1)
distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = Model()
for part in (*model.blocks, model.head, model):
    fully_shard(part, mesh=distributed.init_device_mesh("cpu", (1,)))
for skipped in (1, 5):
    loss = model(torch.ones(2, 4), skipped).sum()
    look()
    loss.backward()
    look()
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_process_knows_which_parts_of_its_sharded_model_it_has_run(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.fsdp")
    command = [sys.executable, "-c", SHARDED, str(tmp_path / "store")]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    seen = [json.loads(line) for line in said.stdout.splitlines()]
    without, blocks, everything = ["blocks.0", "blocks.2"], [*BLOCKS[:3]], [*BLOCKS]
    assert [run for _, run, _ in seen] == [
        without, [*without, "head"], [], blocks, everything, [],
    ]  # fmt: skip
    assert seen[0][0] == everything
    assert "blocks.1" in seen[1][2]
    assert seen[4][2] == []
