"""Runs as recipes leave them, hosts as they tell of themselves, and a page of both."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from monarch.observe.query import QueryTables
from monarch.runs.record.folder import RunFolder, new_run, runs_in
from monarch.runtime.ends.process_start import process_start
from monarch.view.run_view import PageSource
from monarch.view.server import PageServer
from tests.cli.runs_folder import add_row
from tests.observe.test_observe_top import host
from tests.support import wait_for

BEGAN = 1_795_700_000.0
DIFF = """\
--- a/task.py
+++ b/task.py
@@ -22,4 +22,4 @@
 def compute_loss(logits, labels):
     \"\"\"The mean loss of a batch.\"\"\"
-    return functional.cross_entropy(logits, labels)
+    return functional.cross_entropy(logits, labels, label_smoothing={smoothing})"""
TASK = """\
import torch
from torch.nn import functional


def compute_loss(logits, labels):
    smoothing = 0.1
    weights = torch.ones(10)
    return functional.cross_entropy(logits, labels, weight=weightz)
"""
ERROR = "NameError: name 'weightz' is not defined. Did you mean: 'weights'?"
TRACEBACK = f"""\
Traceback (most recent call last):
  File "/tmp/monarch/job-1/trainers1/workspace/task.py", line 8, in compute_loss
    return functional.cross_entropy(logits, labels, weight=weightz)
                                                           ^^^^^^^
{ERROR}"""


def a_run(
    folder: Path, num_steps: int = 2000, *, edits: Sequence[int] = (300, 900, 1300), ranks: int = 4,
    seed: int = 1, rate: float = 0.004,
) -> RunFolder:  # fmt: skip
    """One that has made so many of 3000 steps, and says no more; its program is this one."""
    chance = random.Random(seed)
    run = new_run("ddp", folder / "runs")
    run.write_text("command", "monarch run ddp --config ddp.toml\n")
    run.write_text("config.toml", f'task = "task"\nlearning_rate = {rate}\nnum_epochs = 200\n')
    run.write_json("env.json", {"torch": "2.13.0", "host": "vm", "folder": str(folder)})
    begun = {"pid": os.getpid(), "started": process_start(os.getpid())}
    add_row(
        run,
        "events.jsonl",
        time=BEGAN,
        kind="begun",
        text="begun",
        generation=1,
        digest="d1",
        **begun,
    )
    add_row(run, "events.jsonl", time=BEGAN + 4, kind="first_step", text="first step", seconds=4.1)
    rows = []
    for step in range(1, num_steps + 1):
        loss = 2.3 * math.exp(-step / 400) + 0.05 + 0.02 * chance.random()
        row: dict[str, Any] = {
            "step": step, "num_steps": 3000, "time": BEGAN + 4 + 0.1 * step, "loss": loss,
            "accuracy": 1 - loss / 2.6, "learning_rate": rate * 10 ** (-7 * step / 3000),
            "grad_norm": 1.5 * loss, "samples_per_second": 6000 + 500 * chance.random(),
            "rank_skew_seconds": 0.01 * chance.random(), "generation": 1.0,
        }  # fmt: skip
        if step % 250 == 0:
            row["held_out_accuracy"] = 0.98 - loss / 2.5
        rows.append(row)
    add_rows(run, rows)
    for number, step in enumerate(edits, 2):
        add_row(
            run, "events.jsonl", time=BEGAN + 4 + 0.1 * step, kind="generation",
            text=f"generation {number} from step {step}: task.py, 131 ms after the save",
            generation=number, step=step, files=["task.py"], digest=f"d{number}",
            diff=DIFF.format(smoothing=number / 10), save_to_step_seconds=0.131,
        )  # fmt: skip
    for step in range(100, num_steps, 100):
        add_row(
            run, "events.jsonl", time=BEGAN + 4 + 0.1 * step, kind="saved",
            text=f"saved step {step}", step=step, path=f"checkpoints/step-{step:08}.pt",
        )  # fmt: skip
    (run.path / "logs").mkdir()
    for rank in range(ranks):
        with open(run.path / f"logs/rank{rank}.log", "w") as log:
            log.writelines(f"rank {rank} has read shard {shard}\n" for shard in range(8))
    run.link_as_latest()
    return run


def add_rows(run: RunFolder, rows: Sequence[dict[str, Any]]) -> None:
    import json

    with open(run.path / "metrics.jsonl", "a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def hold(run: RunFolder, ranks: Sequence[int] = (1,)) -> None:
    """It holds from here on."""
    (run.path.parents[1] / "task.py").write_text(TASK)
    add_row(
        run, "events.jsonl", time=BEGAN + 300, kind="held", generation=5, good=4, error=ERROR,
        text=f"step 2001 failed on generation 5: {ERROR}\ntask.py:8, on rank 1\n"
        "The run holds: no rank has changed anything by it, and weights and optimizer are as they "
        "were.\nSave a fix, and step 2001 is made again, on all ranks, with the new code; or go "
        "back: `monarch sync rollback`, or b in a `monarch sync --watch`.",
        traceback=TRACEBACK, file="task.py", line=8, ranks=list(ranks), doing="step 2001",
        in_place=True,
    )  # fmt: skip


def end(run: RunFolder, status: str = "finished", text: str = "") -> None:
    add_row(run, "events.jsonl", time=BEGAN + 400, kind="ended", text=text or status, status=status)


def many_hosts(num_hosts: int, per_host: int = 8, **states: Sequence[int]) -> list[Any]:
    """Looks at so many hosts; ``states`` names ranks whose actors are not running."""
    looks = []
    for number in range(num_hosts):
        look = host(per_host, at=100.0 + number, name=f"host{number}")
        look["url"] = f"ipc://{number}"
        for proc in look["procs"]:
            proc["rank"] += number * per_host
            proc["uid"] = f"p{proc['rank']}"
            for actor in proc["actors"]:
                actor["rank"] = proc["rank"]
                for status, ranks in states.items():
                    if proc["rank"] in ranks:
                        actor["status"] = status
                        actor["doing"] = [] if status == "idle" else actor["doing"]
        looks.append(look)
    return looks


def page_of(
    folder: Path, looks: Callable[[], Sequence[Any]] | None,
    act: Callable[[str, Sequence[str]], str] = lambda what, about: f"{what} {about}",
    **more: Any,
) -> PageServer:  # fmt: skip
    return PageServer(
        PageSource(
            title=folder.name, look=looks, tables=lambda sql: QueryTables([]), act=act,
            runs=lambda: runs_in(folder / "runs"), **more,
        )
    )  # fmt: skip


@contextmanager
def served(server: PageServer) -> Iterator[str]:
    """Within, the page is served: its URL."""
    config = uvicorn.Config(
        server.app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [server._socket]}, daemon=True)
    thread.start()
    wait_for(lambda: runner.started)
    try:
        yield server.url
    finally:
        server._ending.set()
        runner.should_exit = True
        thread.join(20)
        server.close()
