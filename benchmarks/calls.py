"""Calls and starts beside torchmonarch, on this machine, in turn.

    python benchmarks/calls.py --peer PEER/bin/python [--rounds N] [STEP ...]

The peer's interpreter has `torchmonarch`; ours is the one that runs this. The same file measures
both, through the public API, each in a process of its own, one after the other in each round, so
that what else the machine does meets both alike. The steps: `calls` (round trip of `call_one`
with a small argument, microseconds, medians), `ladder` (the same with bytes that come back, from
none to 16 MiB), `ways` (a call from actor to actor in microseconds, and microseconds for each of
a thousand calls that are outstanding at once), `detection` (seconds from SIGKILL of a process to
the error of a call that waits for it), `start1` and `start8` (from before the program
starts to the first answers of so many procs, seconds), `program1` (a whole program: one proc,
called and stopped, start to exit, seconds). Prints a JSON object a line: the median over rounds of
each side, its lowest and highest round, and the median of the rounds' ratios. Without `--peer`
only this side is measured. Our bytecode is compiled first, as by `make setup`; the peer's was when
it was installed.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

STEPS = ("calls", "ladder", "ways", "detection", "start1", "start8", "program1")
_SIZES = {"0 B": 0, "64 B": 64, "1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20,
          "16 MiB": 1 << 24}  # fmt: skip
_NUM_OUTSTANDING = 1000
_NUM_DEATHS = 5
_NUM_CALLS = 2000
_NUM_WARM = 300
_NUM_STARTS = 3
_PATIENCE_SECONDS = 120


def calls() -> dict[str, float]:
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        @endpoint
        def echo(self, value: int) -> int:
            return value

    class AsyncEcho(Actor):
        @endpoint
        async def echo(self, value: int) -> int:
            return value

    def get(echo: Any) -> float:
        times = []
        for _ in range(_NUM_WARM + _NUM_CALLS):
            began = time.perf_counter()
            echo.call_one(1).get()
            times.append(time.perf_counter() - began)
        return statistics.median(times[_NUM_WARM:]) * 1e6

    async def wait(call: Callable[[int], Awaitable[int]]) -> float:
        times = []
        for _ in range(_NUM_WARM + _NUM_CALLS):
            began = time.perf_counter()
            await call(1)
            times.append(time.perf_counter() - began)
        return statistics.median(times[_NUM_WARM:]) * 1e6

    procs = this_host().spawn_procs({"gpus": 1})
    one, other = procs.spawn("sync", Echo).echo, procs.spawn("async", AsyncEcho).echo
    found = {"get.sync": get(one), "get.async": get(other)}
    found["await.sync"] = asyncio.run(wait(one.call_one))
    found["await.async"] = asyncio.run(wait(other.call_one))
    procs.stop().get()
    return found


def ladder() -> dict[str, float]:
    """Return the microseconds of a call that returns bytes, by how many bytes."""
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        @endpoint
        def echo(self, value: bytes) -> bytes:
            return value

    procs = this_host().spawn_procs({"gpus": 1})
    echo = procs.spawn("echo", Echo).echo
    found = {}
    for name, size in _SIZES.items():
        value = bytes(size)
        num = 30 if size > 1 << 18 else 500
        times = []
        for _ in range(num + num // 5):
            began = time.perf_counter()
            echo.call_one(value).get()
            times.append(time.perf_counter() - began)
        found[f"echo.{name}"] = statistics.median(times[num // 5 :]) * 1e6
    procs.stop().get()
    return found


def ways() -> dict[str, float]:
    """Return the microseconds of a call from actor to actor, and of each of many calls at once."""
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        @endpoint
        async def echo(self, value: int) -> int:
            return value

    class Asks(Actor):
        def __init__(self, echo: Any) -> None:
            self.echo = echo

        @endpoint
        async def ask(self) -> float:
            times = []
            for _ in range(_NUM_WARM + _NUM_CALLS):
                began = time.perf_counter()
                await self.echo.echo.call_one(1)
                times.append(time.perf_counter() - began)
            return statistics.median(times[_NUM_WARM:]) * 1e6

    first = this_host().spawn_procs({"gpus": 1})
    second = this_host().spawn_procs({"gpus": 1})
    echo = first.spawn("echo", Echo)
    found = {"actor to actor": second.spawn("asks", Asks, echo).ask.call_one().get()}
    times = []
    for _ in range(6):
        began = time.perf_counter()
        for answer in [echo.echo.call_one(1) for _ in range(_NUM_OUTSTANDING)]:
            answer.get()
        times.append((time.perf_counter() - began) / _NUM_OUTSTANDING)
    found["outstanding"] = statistics.median(times[1:]) * 1e6
    first.stop().get()
    second.stop().get()
    return found


def detection() -> dict[str, float]:
    """Return the seconds from SIGKILL of a process until a call to it raises."""
    import monarch.actor
    from monarch.actor import Actor, endpoint, this_host

    monarch.actor.unhandled_fault_hook = lambda failure: None

    class Sleeps(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def sleep(self) -> None:
            time.sleep(_PATIENCE_SECONDS)

    times = []
    for _ in range(_NUM_DEATHS):
        sleeps = this_host().spawn_procs({"gpus": 1}).spawn("sleeps", Sleeps)
        pid = sleeps.pid.call_one().get()
        waits = sleeps.sleep.call_one()
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        try:
            waits.get()
        except Exception:
            times.append(time.perf_counter() - began)
    return {"detection": statistics.median(times)}


def first_answers(num_procs: int) -> float:
    """Spawn procs, call an actor in each, and return the time of day when all have answered."""
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        @endpoint
        def echo(self, value: int) -> int:
            return value

    procs = this_host().spawn_procs({"gpus": num_procs})
    procs.spawn("echo", Echo).echo.call(1).get()
    answered = time.time()
    procs.stop().get()
    return answered


def measure(step: str) -> None:
    """Take one measurement in this process, and print it as JSON."""
    measures = {"calls": calls, "ladder": ladder, "ways": ways, "detection": detection}
    if step in measures:
        found = measures[step]()
    else:
        found = {"answered": first_answers(int(step.removeprefix("start").removeprefix("program")))}
    print(json.dumps(found), flush=True)


def measured(python: str, step: str) -> dict[str, float]:
    """Take one measurement in a process of the interpreter ``python``, and return its numbers."""
    begun = time.time()
    command = [python, __file__, "--measure", step]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
    )
    seconds = time.time() - begun
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{python} {step} ended with status {run.returncode}:\n{run.stderr}")
    found: dict[str, float] = json.loads(lines[-1])
    if "answered" not in found:
        return found
    return {step: seconds if step == "program1" else found["answered"] - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*", default=[], metavar="STEP")
    parser.add_argument("--peer", help="an interpreter that has torchmonarch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return
    for package in ("monarch", "sync"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=2)
    sides = {"ours": sys.executable, **({"peer": given.peer} if given.peer else {})}
    rounds: dict[str, dict[str, list[float]]] = {}
    for _ in range(given.rounds):
        for step in given.steps or STEPS:
            for _ in range(_NUM_STARTS if step.startswith(("start", "program")) else 1):
                for side, python in sides.items():
                    for metric, value in measured(python, step).items():
                        rounds.setdefault(metric, {}).setdefault(side, []).append(value)
    for metric, each in rounds.items():
        row: dict[str, object] = {"metric": metric, "rounds": len(each["ours"])}
        for side, values in each.items():
            row[side] = round(statistics.median(values), 4)
            row[f"{side}_range"] = [round(min(values), 4), round(max(values), 4)]
        if "peer" in each:
            ratios = [a / b for a, b in zip(each["ours"], each["peer"], strict=True)]
            row["ratio"] = round(statistics.median(ratios), 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    main()
