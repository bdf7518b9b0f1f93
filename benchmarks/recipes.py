"""Recipes beside plain programs that train the same: steps a second, and the first step.

    python benchmarks/recipes.py
    python benchmarks/recipes.py --only ddp --rounds 2 --seconds 200 --rows rounds.jsonl

Interleaved: each round runs each program once, and what is printed are medians over the rounds.
The plain ones are a script under torchrun, TorchFT's manager in processes of one's own, and
TorchTitan's `main` under torchrun; all have as many threads. The rate is that of the steps' second
half. CPU seconds are of all processes of a program, from its beginning to its end; on a busy
machine look at these. With `--rows`, rounds are kept in that file, and those that it has count too:
so they can be run in parts, each of which begins no round that would not end within `--seconds`.
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
from dataclasses import asdict, dataclass
from pathlib import Path

PLAIN = Path(__file__).parent / "plain"
NUM_EPOCHS, NUM_STEPS = 40, 440  # of ddp: an epoch has 11 steps
NUM_GROUP_STEPS = 600
NUM_TITAN_STEPS = 60
FAIR = str(max(1, len(os.sched_getaffinity(0)) // 2))  # threads, as the titan recipe has
_LONGEST_SECONDS = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MONARCH = [sys.executable, "-m", "monarch.cli.main"]


@dataclass(frozen=True)
class Found:
    """What was measured of one program.

    ``first`` is the seconds from its command to the end of its first step, ``rate`` its steps a
    second in the second half, and ``cpu`` its CPU seconds.
    """

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
    """Return the times of the steps: each step is a line that begins with its time of day."""
    words = [line.split() for line in text.splitlines()]
    return [float(line[0]) for line in words if line[1:2] == ["step"]]


def watch(*commands: list[str], folder: Path, environment: dict[str, str] | None = None) -> Found:
    """Run plain programs at once, and measure them by the steps that the first one prints."""
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
    except subprocess.TimeoutExpired:
        sys.exit(f"{commands[0]} took more than {_LONGEST_SECONDS} s")
    finally:
        for process in running:
            process.terminate()
    for process in others:  # They may wait for the one that has finished.
        process.communicate()
    if first.returncode:
        sys.exit(f"{commands[0]} failed: {errors[-2000:]}")
    return found(started, times_in(output), cpu_of_children() - before)


def recipe(folder: Path, *arguments: str) -> Found:
    """Run ``monarch run`` with these arguments, and measure it by the steps in its record."""
    before, started = cpu_of_children(), time.time()
    command = [*MONARCH, "run", *arguments, "--new"]
    try:
        done = subprocess.run(
            command, cwd=folder, text=True, capture_output=True, timeout=_LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{command} took more than {_LONGEST_SECONDS} s")
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
    os.environ["RUST_LOG"] = "warn"  # else ten lines for each step
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


def titan() -> dict[str, Program]:
    # Every step is measured, so that there is a time of it; nothing but steps is.
    keys = {
        "training.steps": NUM_TITAN_STEPS, "metrics.log_freq": 1, "validation.enable": False,
        "checkpoint.enable": False,
    }  # fmt: skip
    ours = ["titan", "--procs", "2", "--config", "titan.toml", "--local"]
    ours += [f"{key}={str(value).lower()}" for key, value in keys.items()]
    theirs = [*TORCHRUN, str(PLAIN / "titan.py"), "--job.config_file", "titan.toml"]
    for key, value in keys.items():
        section, name = key.split(".")
        switch = {True: [f"--{section}.{name}"], False: [f"--{section}.no-{name}"]}
        theirs += switch[value] if isinstance(value, bool) else [f"--{key}", str(value)]

    def prepared(folder: Path) -> Path:
        if not (folder / "titan.toml").exists():
            command = [*MONARCH, "recipe", "prepare", "titan-tiny", "."]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return folder

    return {
        "torchrun": lambda folder: watch(
            theirs, folder=prepared(folder), environment={"OMP_NUM_THREADS": FAIR}
        ),
        "monarch run --local": lambda folder: recipe(prepared(folder), *ours),
    }


PAIRS = {"ddp": ddp, "fault_tolerant": fault_tolerant, "titan": titan}


class Rounds:
    """The measurements of one pair of programs; with a path, they are kept in that file."""

    def __init__(self, pair: str, path: Path | None) -> None:
        self.pair, self.path = pair, path
        self.found: dict[str, list[Found]] = {}
        for line in path.read_text().splitlines() if path and path.exists() else ():
            row = json.loads(line)
            if row.pop("pair") == pair:
                self.found.setdefault(row.pop("program"), []).append(Found(**row))

    def add(self, program: str, found: Found) -> None:
        self.found.setdefault(program, []).append(found)
        if self.path is not None:
            row = {"pair": self.pair, "program": program, **asdict(found)}
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def show(self) -> None:
        num_rounds = min(map(len, self.found.values()), default=0)
        print(f"{self.pair}, medians of {num_rounds}")
        plain: Found | None = None
        for program, rounds in self.found.items():
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PAIRS, action="append", help="this pair; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all rounds")
    parser.add_argument("--rows", type=Path, help="a JSONL file for the rounds")
    asked = parser.parse_args()
    end, longest = time.monotonic() + asked.seconds, 0.0
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for pair in asked.only or PAIRS:
        rounds = Rounds(pair, asked.rows)
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(asked.rounds):
                started = time.monotonic()
                if started + longest > end:
                    break
                for program, run in PAIRS[pair]().items():
                    rounds.add(program, run(Path(folder)))
                longest = max(longest, time.monotonic() - started)
        rounds.show()


if __name__ == "__main__":
    main()
