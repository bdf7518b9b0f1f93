"""Recipes beside plain programs that train the same: steps a second, and the first step.

    python benchmarks/recipes.py
    python benchmarks/recipes.py ddp --rounds 3

Interleaved, medians of five. The plain ones are a script under torchrun, and TorchFT's manager in
processes of one's own. CPU seconds
are of all processes of a program, from its beginning to its end; on a busy machine look at these.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PLAIN = Path(__file__).parent / "plain"
NUM_EPOCHS, NUM_STEPS = 20, 220  # of ddp: an epoch has 11 steps
NUM_GROUP_STEPS = 200
_LONGEST_SECONDS = 600
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MONARCH = [sys.executable, "-m", "monarch.cli.main"]


@dataclass(frozen=True)
class Found:
    """Of one program: seconds from its command to the end of its first step, steps a second in the
    second half, and CPU seconds."""

    first: float
    rate: float
    cpu: float


def found(started: float, times: list[float], cpu: float) -> Found:
    half = times[len(times) // 2 :]
    return Found(times[0] - started, (len(half) - 1) / (half[-1] - half[0]), cpu)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def times_in(text: str) -> list[float]:
    """Each step is a line that begins with the time of day."""
    words = [line.split() for line in text.splitlines() if " step " in line]
    return [float(line[0]) for line in words]


def watch(*commands: list[str], folder: Path, environment: dict[str, str] | None = None) -> Found:
    """Of plain programs, the first of which prints its steps."""
    before, started = cpu_of_children(), time.time()
    running = [
        subprocess.Popen(
            command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "REPLICA": str(number)},
        )
        for number, command in enumerate(commands)
    ]  # fmt: skip
    first, others = running[0], running[1:]
    try:
        output, errors = first.communicate(timeout=_LONGEST_SECONDS)
    finally:
        for process in running:
            process.terminate()
    for process in others:  # They may wait for the one that has finished.
        process.communicate()
    if first.returncode:
        sys.exit(f"{commands[0]} failed: {errors[-2000:]}")
    return found(started, times_in(output), cpu_of_children() - before)


def recipe(folder: Path, *arguments: str) -> Found:
    """Of `monarch run`; the steps are in its folder."""
    before, started = cpu_of_children(), time.time()
    command = [*MONARCH, "run", *arguments, "--new"]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{command} failed: {done.stdout}{done.stderr}")
    rows = map(json.loads, (folder / "runs/latest/metrics.jsonl").read_text().splitlines())
    times = [row["time"] for row in rows if "grad_norm" in row]
    return found(started, times, cpu_of_children() - before)


@contextmanager
def allocation(folder: Path) -> Iterator[None]:
    (folder / "monarch.toml").write_text(
        '[job]\nkind = "process"\nhosts = { trainers = 1 }\npreload = ["torch", "torch._dynamo"]\n'
        '[workspace]\ndirs = ["."]\nignore = ["runs/"]\n'
    )
    subprocess.run([*MONARCH, "apply", "--yes"], cwd=folder, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*MONARCH, "kill", "--yes"], cwd=folder, check=True, capture_output=True)


@contextmanager
def lighthouse() -> Iterator[str]:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=10000, quorum_tick_ms=50,
        heartbeat_timeout_ms=1000,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{server.address().rpartition(':')[2].rstrip('/')}"
    finally:
        server.shutdown()


def plain_groups(folder: Path) -> Found:
    command = [sys.executable, str(PLAIN / "fault_tolerant.py"), str(NUM_GROUP_STEPS)]
    with lighthouse() as url:
        return watch(
            command,
            command,
            folder=folder,
            environment={"TORCHFT_LIGHTHOUSE": url, "RUST_LOG": "warn"},
        )


Program = Callable[[Path], Found]


def ddp() -> dict[str, Program]:
    script = [*TORCHRUN, str(PLAIN / "ddp.py"), str(NUM_STEPS)]
    keys = ["ddp", "--procs", "2", f"num_epochs={NUM_EPOCHS}", "evaluate_every=0"]

    def on_allocation(folder: Path) -> Found:
        with allocation(folder):
            return recipe(folder, *keys)

    return {
        "torchrun": lambda folder: watch(script, folder=folder),
        "monarch run --local": lambda folder: recipe(folder, *keys, "--local"),
        "monarch run, on an allocation": on_allocation,
    }


def fault_tolerant() -> dict[str, Program]:
    keys = ["fault_tolerant", "--procs", "2", f"num_steps={NUM_GROUP_STEPS}", "--local"]
    return {
        "TorchFT, two processes": plain_groups,
        "monarch run --local": lambda folder: recipe(folder, *keys),
    }


PAIRS = {"ddp": ddp, "fault_tolerant": fault_tolerant}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", default=list(PAIRS), metavar="PAIR")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for name in asked.pairs:
        programs = PAIRS[name]()
        results: dict[str, list[Found]] = {program: [] for program in programs}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(asked.rounds):
                for program, run in programs.items():
                    results[program].append(run(Path(folder)))
        print(f"{name}, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        plain: Found | None = None
        for program, rounds in results.items():
            first, rate, cpu = (
                statistics.median(getattr(one, field) for one in rounds)
                for field in ("first", "rate", "cpu")
            )
            plain = plain or Found(first, rate, cpu)
            print(
                f"  {program:<32} first step {first:6.2f} s ({first / plain.first:4.2f})  "
                f"{rate:7.1f} steps/s ({rate / plain.rate:4.2f})  {cpu:6.1f} CPU s",
                flush=True,
            )


if __name__ == "__main__":
    main()
