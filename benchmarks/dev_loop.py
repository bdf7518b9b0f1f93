"""What an edit of the loss costs in a running DDP training, with the commands a person types.

    python benchmarks/dev_loop.py

`monarch apply` holds two processes, `monarch run` trains in them, `monarch sync --watch` watches
the folder. The loss is edited, and the clock stops when all ranks have done the first step that
computes it. `cold` is what the same edit costs with a relaunch: from the command to its first step.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

NUM_EDITS = 9
PATIENCE = 120.0
MONARCH = [sys.executable, "-c", "from monarch.cli.main import main; main()"]


@contextmanager
def running(folder: Path, *words: str) -> Iterator[None]:
    """Run a command of monarch during the ``with`` block, and stop it as Ctrl-C does."""
    with open(folder / "log", "a") as log:
        process = subprocess.Popen([*MONARCH, *words], cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)


def monarch(folder: Path, *words: str) -> None:
    subprocess.run([*MONARCH, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def rows(folder: Path, after: float) -> list[dict[str, Any]]:
    """Return the steps of all runs in the folder that were recorded after the time ``after``."""
    files = sorted(folder.glob("runs/*-*/metrics.jsonl"))
    lines = (line for file in files for line in file.read_text().splitlines(True))
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in found if "loss" in row and row["time"] > after]


def until(
    folder: Path, after: float, enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = rows(folder, after)
        if enough(found):
            return found
        time.sleep(0.02)
    raise SystemExit("no step did what was waited for:\n" + (folder / "log").read_text()[-4000:])


def show(what: str, seconds: float) -> None:
    print(f"{what:<62} {seconds * 1000:8.0f} ms", flush=True)


def edits(folder: Path) -> None:
    recipe = folder / "my_recipe.py"
    text = recipe.read_text()
    loss = "cross_entropy(logits, labels)"
    assert text.count(loss) == 1
    seconds, step = [], []
    for k in range(1, NUM_EDITS + 1):
        before = until(folder, time.time(), lambda found: len(found) >= 10)
        step += [b["time"] - a["time"] for a, b in pairwise(before)]
        saved_at = time.time()
        recipe.write_text(text.replace(loss, f"{loss} + {100 * k}"))
        found = until(
            folder, saved_at, lambda found, low=100 * k - 50: any(r["loss"] > low for r in found)
        )
        first = next(row for row in found if row["loss"] > 100 * k - 50)
        seconds.append(first["time"] - saved_at)
    show("a step", statistics.median(step))
    show(f"save to the end of the first step on the new loss, median of {NUM_EDITS}",
         statistics.median(seconds))  # fmt: skip
    show("... the slowest", max(seconds))


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "monarch.toml").write_text("[job]\nhosts = { trainers = 2 }\n")
        monarch(folder, "recipe", "cp", "ddp", "my_recipe.py")
        endless = ["num_epochs=100000", "checkpoint_every=1000000", "evaluate_every=1000000"]
        started = time.time()
        with running(folder, "run", "my_recipe.py", *endless):
            first = until(folder, started, bool)
        show(
            "cold: the same edit with a relaunch, to the end of step 1", first[0]["time"] - started
        )
        monarch(folder, "apply")
        try:
            with (
                running(folder, "sync", "--watch"),
                running(folder, "run", "my_recipe.py", *endless),
            ):
                edits(folder)
        finally:
            monarch(folder, "kill")


if __name__ == "__main__":
    main()
