"""How long a change takes in a titan training: of a config value, of parallelism, of the loss.

    python benchmarks/titan.py

Two procs on this machine, the smallest Llama. `cold` is what a change costs without this: the
programs are started again. Everything else happens in processes that stay.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

START = time.time()

from monarch.actor import this_host  # noqa: E402
from monarch.config_file import load_config  # noqa: E402
from monarch_recipes.titan import PRELOAD, Driver  # noqa: E402
from monarch_recipes.titan.config import TitanConfig, in_folder  # noqa: E402
from monarch_recipes.titan.tiny import prepare  # noqa: E402
from monarch_sync import Workspace  # noqa: E402

SMALL = [
    "model.flavor=test", "training.local_batch_size=2", "training.seq_len=64",
    "training.steps=1000000", "metrics.log_freq=1", "validation.enable=false",
    "checkpoint.interval=1000000",
]  # fmt: skip
NUM_EDITS = 9


def config(folder: Path, *overrides: str) -> TitanConfig:
    loaded = load_config(TitanConfig, folder / "titan.toml", [*SMALL, *overrides])
    return in_folder(loaded.config, folder / "run")


def show(what: str, seconds: float) -> None:
    print(f"{what:<52} {seconds * 1000:8.0f} ms", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        os.chdir(folder)
        sys.path.insert(0, name)
        procs = this_host().spawn_procs({"gpus": 2}, preload=PRELOAD)
        driver = Driver(procs)
        driver.setup(config(folder))
        driver.step()
        cold = time.time() - START
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        show("cold: start all programs, to the end of step 1", cold)
        driver.save()
        for what, override in (
            ("another learning rate, in the same processes", "optimizer.lr=1e-3"),
            ("FSDP becomes tensor parallelism", "parallelism.tensor_parallel_degree=2"),
            ("DDP", "parallelism.data_parallel_replicate_degree=2"),
            ("FSDP again", "optimizer.lr=2e-3"),
        ):
            started = time.time()
            driver.setup(config(folder, override))
            driver.step()
            seconds = time.time() - started
            show(f"{what}, to the end of a step ({cold / seconds:.0f} x)", seconds)
        edits(driver, folder)
        driver.close()
        procs.stop().get()


def edits(driver: Driver, folder: Path) -> None:
    """Edit the loss during the training, and measure the time from each save to its first step."""
    workspace = Workspace({folder: ""})
    code = folder / "tiny_llama.py"
    text = code.read_text()
    steps: list[tuple[float, float, int]] = []  # begun, ended, generation of the last rank
    done = threading.Event()

    def train() -> None:
        while not done.is_set():
            begun = time.time()
            results = driver.step()
            steps.append((begun, time.time(), min(result.generation for result in results)))

    asyncio.run(driver.procs.sync_workspace(workspace))
    thread = threading.Thread(target=train)
    thread.start()
    begins, ends = [], []
    try:
        for factor in range(2, NUM_EDITS + 2):
            until = len(steps) + 5
            while len(steps) < until:
                time.sleep(0.01)
            before = steps[-1][2]
            saved_at = time.time()
            code.write_text(text.replace('reduction="sum")', f'reduction="sum") * {factor}'))
            asyncio.run(driver.procs.sync_workspace(workspace)).raise_for_errors()
            while steps[-1][2] == before:
                time.sleep(0.001)
            begun, ended, _ = next(step for step in steps if step[2] > before)
            begins.append(begun - saved_at)
            ends.append(ended - saved_at)
    finally:
        done.set()
        thread.join()
    length = statistics.median(end - begin for begin, end, _ in steps)
    show("a step", length)
    show(f"save of the loss to the first step that has it begins, median of {NUM_EDITS}",
         statistics.median(begins))  # fmt: skip
    show("... and is done on all ranks", statistics.median(ends))


if __name__ == "__main__":
    main()
