"""What looking costs: a row a call, memory of a full ring, gathering and asking, a page, a report.

python benchmarks/observe.py [--calls 3000] > benchmarks/results/observe.txt
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
import tracemalloc

from monarch.actor import Actor, endpoint, this_host
from monarch.core.event_ring import CallsInHand, EventRing, sent_call_ends
from monarch.observe.hang_report import hang_report
from monarch.observe.query import QueryTables, live_rows
from monarch.observe.visit import MeshVisit, hosts_of, procs_of
from monarch.runtime.client_agent import client
from monarch.runtime.observe.drain import pack_rows

ROWS = 8192


class Bench(Actor):
    """An actor that returns its argument, or the CPU time of its process."""

    @endpoint
    def call(self, value: int) -> int:
        return value

    @endpoint
    def cpu(self) -> float:
        return time.process_time()


def cpu_us_of_a_call(num_calls: int) -> float:
    """Return the CPU microseconds of a call, of client and proc together.

    It is the median of five rounds.
    """
    procs = this_host().spawn_procs({"gpus": 1})
    actor = procs.spawn("bench", Bench)
    for _ in range(300):
        actor.call.call_one(1).get()
    found = []
    for _ in range(5):
        there, here = actor.cpu.call_one().get(), time.process_time()
        for _ in range(num_calls):
            actor.call.call_one(1).get()
        used = time.process_time() - here + actor.cpu.call_one().get() - there
        found.append(used / num_calls * 1e6)
    procs.stop().get()
    return statistics.median(found)


def cpu_us_with_and_without(num_calls: int) -> tuple[float, float]:
    """Return the CPU microseconds of a call with telemetry and without.

    Each is the median of three programs, which run in turns.
    """
    found: dict[str, list[float]] = {"8192": [], "0": []}
    for _ in range(3):
        for events, took in found.items():
            told = subprocess.run(
                [sys.executable, __file__, "--calls", str(num_calls // 5), "--only-calls"],
                env={**os.environ, "MONARCH_TELEMETRY_EVENTS": events},
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            took.append(float(told.stdout))
    return statistics.median(found["8192"]), statistics.median(found["0"])


def ms_of_first_paint(visit: MeshVisit) -> tuple[float, float]:
    """Return how long ``monarch top`` takes until it shows rows: wall and CPU milliseconds.

    The time of its imports is included.
    """
    began, cpu = time.perf_counter(), time.process_time()
    from textual.widgets import DataTable

    from monarch.view.top import MonarchTop

    async def paint() -> None:
        app = MonarchTop(visit.look, lambda what, uids: "", "bench")
        async with app.run_test(size=(80, 24)) as pilot:
            while not app.query_one(DataTable).row_count:
                await pilot.pause(0.005)

    asyncio.run(paint())
    return (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3


def cpu_us_of_rows(num: int = 200_000) -> float:
    """Return the CPU microseconds that the rows of one call take, on both sides together.

    No call is made: that has less noise than the difference of two measurements.
    """
    ring = EventRing(ROWS, time.monotonic_ns)
    calls = CallsInHand(ring, "mesh", 0)
    began = time.process_time()
    for number in range(num):
        sent = ring, ring.clock(), "", 0, "mesh", "call", number, 1
        arrived = ring.clock()
        calls.begins(number, "call", "client", number, arrived)
        calls.ends(number, 0, is_ok=True)
        sent_call_ends(sent, is_ok=True)
    return (time.process_time() - began) / num * 1e6


def mib_of_a_full_ring() -> float:
    tracemalloc.start()
    ring = EventRing(ROWS, time.monotonic_ns)
    calls = CallsInHand(ring, "mesh", 0)
    for number in range(1_000_000, 1_000_000 + 3 * ROWS):
        calls.begins(number, "call", "client", number, ring.clock())
        calls.ends(number, 0, is_ok=True)
    size = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return size


def seconds_of_a_million_rows() -> tuple[float, float]:
    """Return how long a million rows of 122 processes take to load and query.

    That is in wall seconds and CPU seconds.
    """
    ring = EventRing(ROWS, time.monotonic_ns)
    calls = CallsInHand(ring, "mesh", 0)
    for number in range(ROWS):
        calls.begins(number, "call", "client", number, ring.clock())
        calls.ends(number, 0, is_ok=True)
    packed = pack_rows(ring.rows())
    rows = [(f"proc{proc}", packed) for proc in range(1_000_000 // ROWS)]
    began, cpu = time.perf_counter(), time.process_time()
    with QueryTables([], rows=rows) as tables:
        found = tables.query("SELECT proc, method, count(*), max(run) FROM calls GROUP BY ALL")
        assert len(found) == len(rows)
    return time.perf_counter() - began, time.process_time() - cpu


def import_ms() -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import monarch.actor"], check=True)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--only-calls", action="store_true", help="print what one takes, no more")
    args = parser.parse_args()
    if args.only_calls:
        print(cpu_us_of_a_call(args.calls))
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    call = cpu_us_of_a_call(args.calls)
    rows = cpu_us_of_rows()
    print(f"a call: {call:.0f} us CPU, client and proc; its rows: {rows:.2f} us, ", end="")
    print(f"{100 * rows / call:.2f} %")
    with_it, without = cpu_us_with_and_without(20_000)
    print(
        f"20,000 calls: {with_it:.1f} us CPU each with telemetry, {without:.1f} us without, ",
        end="",
    )
    print(f"{100 * (with_it - without) / without:+.1f} % (medians of three programs each)")
    print(f"a full ring of {ROWS} rows: {mib_of_a_full_ring():.2f} MiB")
    wall, cpu = seconds_of_a_million_rows()
    print(f"a million rows loaded and asked: {wall:.2f} s, {cpu:.2f} s CPU")
    procs = this_host().spawn_procs({"gpus": 8})
    procs.spawn("bench", Bench).call.call(1).get()
    visit = MeshVisit(client().node, hosts_of(client()))
    began = time.perf_counter()
    looks = visit.look(flight=True)
    looked = time.perf_counter()
    hang_report(looks)
    live_rows(looks)
    print(f"a look at 8 procs: {(looked - began) * 1e3:.0f} ms; ", end="")
    print(f"hang report: {(time.perf_counter() - began) * 1e3:.0f} ms")
    began = time.perf_counter()
    visit.stacks(procs_of(looks))
    print(f"stacks of 8 procs: {(time.perf_counter() - began) * 1e3:.0f} ms; ", end="")
    wall, cpu = ms_of_first_paint(visit)
    print(f"top's first rows: {wall:.0f} ms, {cpu:.0f} ms CPU, with its import")
    procs.stop().get()
    print(f"import monarch.actor: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
