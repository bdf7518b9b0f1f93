"""Times the runtime on this machine and prints one JSON object a line.

    python benchmarks/runtime.py [call_one] [spawn]

`load1` is the load average at the time: figures taken on a busy machine are upper bounds.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from monarch.actor import Actor, endpoint, this_host


class Echo(Actor):
    @endpoint
    def echo(self, value: object = None) -> object:
        return value


class AsyncEcho(Actor):
    @endpoint
    async def echo(self, value: object = None) -> object:
        return value


def emit(metric: str, value: float, unit: str, **more: object) -> None:
    line = {"metric": metric, "value": round(value, 4), "unit": unit, **more}
    print(json.dumps({**line, "load1": os.getloadavg()[0]}), flush=True)


def microseconds(action: Callable[[], object], num_runs: int) -> list[float]:
    times = []
    for _ in range(num_runs):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1e6)
    return sorted(times)


def call_one() -> None:
    """Measure the round trip of ``call_one`` with a small argument, from client to proc."""
    procs = this_host().spawn_procs({"gpus": 1})
    for name, cls in (("sync", Echo), ("async", AsyncEcho)):
        echo = procs.spawn(name, cls).echo
        microseconds(lambda echo=echo: echo.call_one(1).get(), 300)
        times = microseconds(lambda echo=echo: echo.call_one(1).get(), 3000)
        for label, value in (("p50", statistics.median(times)), ("p99", times[2970])):
            emit(f"call_one.{name}_endpoint.{label}", value, "us", n=len(times))
    procs.stop().get()


def spawn() -> None:
    """Measure the start of eight procs, until their first answered call, with torch preloaded."""
    host = this_host()
    started = time.perf_counter()
    host.preload(["torch"]).get()
    emit("spawn.preload_torch", time.perf_counter() - started, "s")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        procs = host.spawn_procs({"gpus": 8}, preload=["torch"])
        procs.spawn("echo", Echo).echo.call(1).get()
        times.append(time.perf_counter() - started)
        procs.stop().get()
    spread = [min(times), max(times)]
    emit("spawn.procs8_with_torch", statistics.median(times), "s", n=5, spread=spread)


if __name__ == "__main__":
    steps = {"call_one": call_one, "spawn": spawn}
    for step in sys.argv[1:] or steps:
        steps[step]()
