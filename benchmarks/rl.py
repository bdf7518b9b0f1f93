"""The recipe `rl`: three ways to spend the same time, what runs beside what, and an edited reward.

    python benchmarks/rl.py
    python benchmarks/rl.py --seconds 90 --seeds 3 --edits 9 --svg rl.svg
    python benchmarks/rl.py edit --trace trace.json.gz

`curves`: supervised only, synchronous and asynchronous reinforcement learning, by turns for each
seed, each for so many seconds from its first step on. The supervised phase of the latter two is
within that time. Tokens a second count those of the steps of reinforcement, and their whole time.

`edit`: `monarch apply` holds two processes, `monarch run rl` trains, `monarch sync --watch` watches
the folder. The reward is edited; the clock stops when the first batch has been judged by it. Beside
it the same edit with a restart: from the command to its first judged batch. `--trace` writes what
all meshes did in 5 s, for Perfetto.

On a busy machine look at the ratios.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dev_loop import PATIENCE, monarch, running, show
from svg import Panel, plot

from monarch.actor import this_host
from monarch.observe.json_rows import json_rows, rows_in
from monarch.runs import LineDisplay, Record
from monarch_recipes import rl

ENDLESS = 1_000_000
WAYS: dict[str, dict[str, int]] = {
    "supervised only": {"num_supervised_steps": ENDLESS, "num_steps": 1},
    "synchronous": {"num_batches_ahead": 0},
    "asynchronous": {"num_batches_ahead": 1},
}
TASK = """
from monarch_recipes.rollouts.problems import reward as theirs


def reward(problem, completion):
    return theirs(problem, completion) + {number}
"""

Rows = list[dict[str, Any]]


class _Timed(Record):
    """A record that stops its run ``seconds`` after the first step."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, LineDisplay(io.StringIO(), ENDLESS), procs_per_host=1)
        self.seconds, self.first_at = seconds, 0.0

    def metrics(self, step: int, num_steps: int, values: Any) -> None:
        super().metrics(step, num_steps, values)
        self.first_at = self.first_at or time.monotonic()
        if time.monotonic() - self.first_at > self.seconds:
            self.stop()


def trained(way: str, seed: int, seconds: float, supervised: int, folder: Path) -> Rows:
    """Run the recipe ``rl`` in the way ``way``, and return the rows of its metrics."""
    keys: dict[str, Any] = {
        "num_supervised_steps": supervised, "num_steps": ENDLESS, "checkpoint_every": 0,
        "evaluate_every": 25, "device": "cpu", "seed": seed, **WAYS[way],
    }  # fmt: skip
    if way == "supervised only":
        keys["evaluate_every"] = 100  # its steps are shorter
    record = _Timed(folder, seconds)
    rl.run(rl.RLConfig(**keys), this_host(), record)
    rows: Rows = list(json_rows(folder / "metrics.jsonl"))
    return rows


def solved(rows: Rows) -> list[tuple[float, float]]:
    """Return each evaluation: the seconds since the first row, and the share of problems solved."""
    start = rows[0]["time"]
    found = [(r["time"] - start, r["held_out_solved"]) for r in rows if "held_out_solved" in r]
    if not found:
        raise SystemExit("nothing was evaluated in that time: say more --seconds")
    return found


def after(rows: Rows, step: int) -> float:
    """Return the share of held-out problems that were solved after this step."""
    return float(
        next(r["held_out_solved"] for r in rows if r["step"] == step and "held_out_solved" in r)
    )


def of_steps(rows: Rows) -> Rows:
    """Return the rows of reinforcement learning, without the first, which includes start-up."""
    return [row for row in rows if "generate_seconds" in row][1:]


def tokens_per_second(rows: Rows) -> float:
    steps = of_steps(rows)
    tokens = sum(r["generated_tokens_per_second"] * r["generate_seconds"] for r in steps)
    return float(tokens / sum(r["step_seconds"] for r in steps))


def mean_and_spread(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return (
        f"{statistics.mean(values):.3f} +- {spread:.3f} ({', '.join(f'{v:.3f}' for v in values)})"
    )


def curves(seconds: float, num_seeds: int, supervised: int, svg: Path | None) -> None:
    found: dict[str, list[Rows]] = {way: [] for way in WAYS}
    for seed in range(num_seeds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                found[way].append(trained(way, seed, seconds, supervised, Path(folder)))
            rows = found[way][-1]
            text = f"{solved(rows)[-1][1]:.3f} after {rows[-1]['step']} steps"
            load = os.getloadavg()[1]  # of the last five minutes
            print(f"  seed {seed}, {way}: {text}, load {load:.1f}", flush=True)
    print(f"held-out problems solved after {seconds:g} s, {num_seeds} seeds, mean and spread")
    for way, runs in found.items():
        print(f"  {way:<16} {mean_and_spread([solved(rows)[-1][1] for rows in runs])}")
    for way in ("synchronous", "asynchronous"):
        gained = [solved(rows)[-1][1] - after(rows, supervised) for rows in found[way]]
        print(f"  {f'{way}, over its supervised phase':<40} {mean_and_spread(gained)}")
    pairs = zip(found["asynchronous"], found["synchronous"], strict=True)
    ratios = [tokens_per_second(one) / tokens_per_second(other) for one, other in pairs]
    print(f"tokens/s, asynchronous to synchronous: {mean_and_spread(ratios)}")
    for way in ("synchronous", "asynchronous"):
        steps = [row for rows in found[way] for row in of_steps(rows)]

        def share(name: str, steps: Rows = steps) -> float:
            return float(sum(r[name] for r in steps) / sum(r["step_seconds"] for r in steps))

        stale = sum(r["stale_groups"] for r in steps)
        taken = sum(r["groups"] for r in steps)
        fetch = statistics.median(r["fetch_seconds"] for r in steps) * 1000
        print(
            f"  {way:<16} of a step's time: {share('generator_wait_seconds'):.2f} waiting for "
            f"samples, {share('judge_seconds'):.2f} judging, "
            f"{share('learn_seconds'):.2f} learning; "
            f"{statistics.mean(r['staleness'] for r in steps):.2f} steps old, "
            f"{stale / max(1, stale + taken):.3f} left out as stale; "
            f"new weights in all generators after {fetch:.0f} ms"
        )
    if svg is not None:
        lines = {
            way: [(t, 1000 * share) for t, share in solved(runs[0]) if t > 0 and share > 0]
            for way, runs in found.items()
        }
        panel = Panel("held-out problems solved (of 1000)", "seconds", lines)
        svg.write_text(plot([panel], f"seed 0, {seconds:g} s").replace(" ms</text>", "</text>"))


def until(read: Callable[[], Any], folder: Path) -> Any:
    """Call ``read`` until it returns something that is not empty, and return that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := read():
            return found
        time.sleep(0.01)
    raise SystemExit("it did not come:\n" + (folder / "log").read_text()[-4000:])


class NewRows:
    """Reads the rows that a file of the newest run has gained, each once.

    Reading the whole file every few milliseconds would distort the measurement.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.file: Path | None = None
        self.size = 0

    def read(self) -> Rows:
        """Return the rows that were added since the last call."""
        newest = max(self.folder.glob(f"runs/*-*/{self.name}"), default=None)
        if newest is None:
            return []
        if newest != self.file:
            self.file, self.size = newest, 0
        with open(newest, "rb") as file:
            file.seek(self.size)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self.size += len(data)
        return rows_in(data)


def edit(num_edits: int, trace: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "monarch.toml").write_text("[job]\nhosts = { trainers = 1 }\n")
        task = folder / "my_task.py"
        task.write_text(TASK.format(number=0))
        keys = ["task=my_task", "num_supervised_steps=20", f"num_steps={ENDLESS}"]
        keys += ["checkpoint_every=1000000", "evaluate_every=1000000", "device=cpu"]
        samples = NewRows(folder, "rollouts.jsonl")
        started = time.time()
        with running(folder, "run", "rl", *keys):
            cold = until(samples.read, folder)[0]["time"] - started
        monarch(folder, "apply")
        steps = NewRows(folder, "metrics.jsonl")
        samples.read()
        steps.read()
        try:
            with running(folder, "sync", "--watch"), running(folder, "run", "rl", *keys):
                seconds, batches, draw = [], list[float](), random.Random(0)
                for number in range(1, num_edits + 1):
                    rows: Rows = []
                    until(lambda r=rows: len(_reinforced(r, steps)) >= 6, folder)
                    batches += [b["time"] - a["time"] for a, b in pairwise(rows[1:])]
                    # A person saves at any moment of a batch, not at its end.
                    time.sleep(draw.random() * statistics.median(batches))
                    samples.read()
                    saved_at = time.time()
                    task.write_text(TASK.format(number=100 * number))
                    first = until(lambda n=100 * number: _judged_by(n, samples), folder)
                    seconds.append(first["time"] - saved_at)
                    steps.read()
                if trace is not None:
                    monarch(folder, "trace", "--seconds", "5", "-o", str(trace.absolute()))
        finally:
            monarch(folder, "kill", "--yes")
    batch, median = statistics.median(batches), statistics.median(seconds)
    show("a batch", batch)
    show(f"save of the reward to the first batch judged by it, median of {num_edits}", median)
    show("... the slowest", max(seconds))
    show("cold: the same edit with a restart", cold)
    print(f"an edit takes {median / batch:.2f} batches; a restart {cold / median:.1f} edits")
    print(
        f"asked: at most {batch + 0.2:.3f} s; {sum(s <= batch + 0.2 for s in seconds)} of "
        f"{num_edits} edits took no longer"
    )


def _reinforced(rows: Rows, steps: NewRows) -> Rows:
    rows += [row for row in steps.read() if "judge_seconds" in row]
    return rows


def _judged_by(number: int, samples: NewRows) -> dict[str, Any] | None:
    """Return a new sample that this or a later reward has judged; ``None`` if there is none."""
    return next((row for row in samples.read() if row["reward"] >= number), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["curves", "edit"])
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--supervised", type=int, default=rl.RLConfig().num_supervised_steps,
        help="steps before reinforcement",
    )  # fmt: skip
    parser.add_argument("--edits", type=int, default=9)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--trace", type=Path)
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "edit" in asked.what:
        edit(asked.edits, asked.trace)
    if "curves" in asked.what:
        curves(asked.seconds, asked.seeds, asked.supervised, asked.svg)


if __name__ == "__main__":
    main()
