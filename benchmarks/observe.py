"""What looking costs: a row a call, memory of a full ring, gathering and asking, a page, a report.

python benchmarks/observe.py [--calls 3000] > benchmarks/results/observe.txt
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import tracemalloc

from monarch.actor import Actor, endpoint, this_host
from monarch.core.event_ring import CallsInHand, EventRing, SentCall
from monarch.observe.hang_report import hang_report
from monarch.observe.query import QueryTables, live_rows
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime.client_agent import client
from monarch.runtime.observe.drain import pack_lines, pack_rows, read_rows

ROWS = 8192


class Bench(Actor):
    """Answers, and tells its CPU time."""

    @endpoint
    def call(self, value: int) -> int:
        return value

    @endpoint
    def cpu(self) -> float:
        return time.process_time()


def cpu_us_of_a_call(num_calls: int) -> float:
    """Of client and proc together: the median of five rounds, microseconds."""
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


def cpu_us_of_rows(num: int = 200_000) -> float:
    """What is added to a call on both sides, without the call: less noise than a difference."""
    ring = EventRing(ROWS, time.monotonic_ns)
    calls = CallsInHand(ring, "mesh", 0)
    began = time.process_time()
    for number in range(num):
        sent = tuple.__new__(SentCall, (ring, ring.clock(), "", 0, "mesh", "call", number, 1))
        arrived = ring.clock()
        calls.begins(number, "call", "client", number, arrived)
        calls.ends(number, 0, is_ok=True)
        sent.ends(is_ok=True)
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
    """To read them as they come from 122 processes; to load them and ask."""
    ring = EventRing(ROWS, time.monotonic_ns)
    calls = CallsInHand(ring, "mesh", 0)
    for number in range(ROWS):
        calls.begins(number, "call", "client", number, ring.clock())
        calls.ends(number, 0, is_ok=True)
    packed = pack_rows(ring.rows())
    began = time.perf_counter()
    lines = [pack_lines(read_rows(f"proc{proc}", packed)) for proc in range(1_000_000 // ROWS)]
    read = time.perf_counter()
    with QueryTables(lines) as tables:
        found = tables.query("SELECT p, method, count(*), max(run) FROM rows GROUP BY ALL")
        assert len(found) >= 122
    return read - began, time.perf_counter() - read


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
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    call = cpu_us_of_a_call(args.calls)
    rows = cpu_us_of_rows()
    print(f"a call: {call:.0f} us CPU, client and proc; its rows: {rows:.2f} us, ", end="")
    print(f"{100 * rows / call:.2f} %")
    print(f"a full ring of {ROWS} rows: {mib_of_a_full_ring():.2f} MiB")
    read, ask = seconds_of_a_million_rows()
    print(f"a million rows: read {read:.2f} s, loaded and asked {ask:.2f} s")
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
    procs.stop().get()
    print(f"import monarch.actor: {import_ms():.0f} ms")


if __name__ == "__main__":
    main()
