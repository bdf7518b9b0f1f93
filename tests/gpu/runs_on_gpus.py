"""Runs of recipes on the GPUs of this machine, whose files are edited meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from monarch.runs import Record
from tests.gpu_here import num_gpus
from tests.recipes.held_run import LOSS, HeldRun

# What is edited in, by how it fails, and what is told of it.
EDITS = {
    "a name": (LOSS.replace("labels", "labelz"), "labelz"),
    "on one rank": (
        "    if dist.get_rank() == dist.get_world_size() - 1:\n"
        "        raise KeyError('mine')\n" + LOSS,
        "mine",
    ),
    "an assert of the device": (LOSS.replace("labels", "labels + 1000"), ""),
    "os._exit": ("    import os\n    os._exit(3)\n" + LOSS, ""),
}


def on_gpus(root: Path, name: str, *, procs: int = 0, **settings: Any) -> HeldRun:
    """A run of ``ddp`` with a rank for each GPU."""
    made = HeldRun(root, name, device="cuda", num_epochs=3, **settings)
    made.record = Record(root.parent / name, made, procs_per_host=procs or num_gpus())
    made.record.edits.policy = "hold"
    return made


def seconds_to_next_step(run: HeldRun, name: str, text: str) -> float:
    """From the push of a file to the end of a step that was not made before it."""
    begun = time.perf_counter()
    assert run.push(name, text).ok
    last = run.steps[-1]
    run.when_step(last + 1)
    return time.perf_counter() - begun
