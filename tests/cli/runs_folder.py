"""A folder with a recipe that needs no torch, and the runs that are made of it there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monarch.observe.json_rows import json_rows
from monarch.runs.record.folder import RunFolder, new_run
from tests.cli.command_folder import CommandFolder
from tests.support import wait_for

__all__ = ["COUNTING", "RunsFolder", "add_row", "two_runs"]

COUNTING = '''
"""Counts, and can be stopped and resumed.

More words about it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.config_file import ConfigError, live
from monarch.runs import Record


@dataclass(frozen=True)
class Config:
    num_steps: int = 4
    amount: float = live(1.0)
    size: int = 8
    fail_at: int = 0
    wait_for: str = ""


def check(config: Config, num_hosts: int, procs_per_host: int) -> None:
    if config.size % (num_hosts * procs_per_host):
        raise ConfigError("cannot be shared", key="size")


def plan(config: Config, num_hosts: int, procs_per_host: int) -> dict:
    return {"parameters": config.size}


def prepare(folder: Path) -> Path:
    folder.mkdir()
    return folder / "data.txt"


class Counter(Actor):
    @endpoint
    def add(self, amount: float) -> tuple[float, int]:
        print(f"adding {amount}")
        return amount, context().generation


def run(config: Config, procs: ProcMesh, record: Record) -> dict:
    counters = procs.spawn("counter", Counter)
    saved = record.checkpoint_dir / "count"
    step = int(saved.read_text()) if saved.exists() else 0
    if step:
        record.event("resumed", f"resumed after step {step}", step=step)
    while step < config.num_steps and not record.is_stopping:
        config = record.live(config)
        step += 1
        answers = counters.add.call(config.amount).get().values()
        if step == config.fail_at:
            raise RuntimeError("the recipe is broken")
        total = sum(amount for amount, _ in answers)
        generation = min(generation for _, generation in answers)
        record.metrics(step, config.num_steps, {"loss": 1 / step, "total": total,
                                                "generation": generation})
        saved.write_text(str(step))
        while config.wait_for and step == 2 and not os.path.exists(config.wait_for):
            if record.is_stopping:
                break
            time.sleep(0.01)
    record.message(f"counted to {step}")
    return {"step": step}
'''


class RunsFolder(CommandFolder):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write("counting.py", COUNTING)

    @property
    def runs(self) -> list[Path]:
        found = self.path.glob("runs/[!.]*-*/command")
        return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]

    def wait_for_steps(self, number: int) -> None:
        """Until the only run has reported so many."""
        wait_for(lambda: self.runs and len(self.rows("metrics.jsonl")) == number, 60.0)

    def rows(self, name: str, run: int = -1) -> list[dict[str, Any]]:
        """Those that are whole: another process may be writing one."""
        return json_rows(self.runs[run] / name)

    def kinds(self, run: int = -1) -> list[str]:
        return [row["kind"] for row in self.rows("events.jsonl", run)]


def two_runs(path: Path) -> RunsFolder:
    """With two of them, as a recipe would have left them."""
    made = RunsFolder(path)
    for rate, losses, status in ((0.1, (3.0, 2.0, 1.0), "finished"), (0.2, (3.0, 2.5), "failed")):
        run = new_run("counting", path / "runs")
        run.write_text("command", "monarch run counting.py\n")
        run.write_text("config.toml", f"rate = {rate}\nsize = 8\n\n[data]\nseed = 1\n")
        for step, loss in enumerate(losses, 1):
            add_row(run, "metrics.jsonl", step=step, num_steps=3, time=100.0 + step, loss=loss)
        add_row(run, "events.jsonl", time=100.0, kind="begun", text="begun", pid=1, started=0)
        add_row(run, "events.jsonl", time=101.5, kind="died", text="rank 1 died <of> it")
        add_row(run, "events.jsonl", time=104.0, kind="ended", text=status, status=status)
        run.link_as_latest()
    return made


def add_row(run: RunFolder, name: str, **row: object) -> None:
    with open(run.path / name, "a") as file:
        file.write(json.dumps(row) + "\n")
