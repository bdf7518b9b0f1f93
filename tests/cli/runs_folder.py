"""A folder with a recipe that needs no torch, and the command run in it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from monarch.cli.main import cli
from tests.support import wait_for

__all__ = ["COUNTING", "RunsFolder"]

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


class RunsFolder:
    """``monarch`` as a process of its own, in ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("counting.py", COUNTING)

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def here(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
        """Within this process, for what starts nothing: the output, or what it raises."""
        monkeypatch.chdir(self.path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                cli.main(list(arguments), standalone_mode=False)
        finally:
            for name in ("counting", "my_counting"):
                sys.modules.pop(name, None)
            importlib.invalidate_caches()
        return output.getvalue()

    def monarch(self, *arguments: str, status: int = 0, **environment: str) -> str:
        """Its output, standard error last."""
        done = subprocess.run(
            [sys.executable, "-m", "monarch.cli.main", *arguments],
            cwd=self.path, capture_output=True, text=True, timeout=100,
            stdin=subprocess.DEVNULL, env={**os.environ, **environment},
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert done.returncode == status, output
        return output

    @property
    def runs(self) -> list[Path]:
        found = self.path.glob("runs/*-*/command")
        return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]

    def wait_for_steps(self, number: int) -> None:
        """Until the only run has reported so many."""
        wait_for(lambda: self.runs and len(self.rows("metrics.jsonl")) == number, 60.0)

    def rows(self, name: str, run: int = -1) -> list[dict[str, Any]]:
        path = self.runs[run] / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def kinds(self, run: int = -1) -> list[str]:
        return [row["kind"] for row in self.rows("events.jsonl", run)]
