"""What a broadcast, a call and a spawn cost on 1 to 1,000 hosts: simulated, with the real code.

    python benchmarks/scale.py [--hosts 1,10,100,1000] [--degrees 8,16,32] [--results DIR]

The nodes, the trees, the folding of answers and the client's API are the ones that programs use;
`simulation.py` replaces sockets, processes and the clock. Prints a table, and writes it with a
plot to `--results`.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from simulation import Cost, World

from monarch.actor import Actor, endpoint
from monarch.config import configured
from monarch.core.fanout import depth
from monarch.runtime import process

PROCS_PER_HOST = 8
LARGE_BYTES = 1 << 20


class Trivial(Actor):
    @endpoint
    def ping(self, value: object = None) -> None: ...


@dataclass
class Row:
    action: str
    num_hosts: int
    route: str
    hops: int
    cost: Cost


def run(num_hosts: int, degree: int) -> list[Row]:
    """Measure all actions on ``num_hosts`` simulated hosts.

    ``degree`` is the degree of the tree by which messages are sent; 0 sends to each host directly.
    """
    world = World(num_hosts)
    process.install(world.agent)
    rows: list[Row] = []
    route = f"tree {degree}" if degree else "direct"
    hops = depth(num_hosts, degree) + 1 if degree else 1

    def note(action: str, cost: Cost) -> None:
        rows.append(Row(action, num_hosts, route, hops, cost))

    try:
        with configured(tree_min_hosts=1 if degree else 1 << 30, tree_degree=degree or 16):
            found: list[Any] = []

            def spawn() -> Any:
                procs = world.mesh.spawn_procs({"procs": PROCS_PER_HOST})
                found.append(procs.spawn("trivial", Trivial))
                return found[0].ping.call()

            note("spawn + first call", world.measure(spawn))
            ping = found[0].ping
            note("call", world.measure(ping.call))
            note("broadcast", world.measure(ping.broadcast, until_handled=True))
            large = bytes(LARGE_BYTES)
            note(
                "broadcast 1 MiB",
                world.measure(lambda: ping.broadcast(large), until_handled=True),
            )
            note(
                "call_one",
                world.measure(found[0].slice(hosts=num_hosts - 1, procs=0).ping.call_one),
            )
    finally:
        process.uninstall()
    return rows


def table(rows: list[Row]) -> Table:
    shown = Table(title=f"{PROCS_PER_HOST} procs a host; simulated time")
    for name in ("action", "hosts", "route", "hops", "ms", "client msgs", "client MB",
                 "host msgs (max)", "(mean)", "host MB (max)"):  # fmt: skip
        shown.add_column(name, justify="left" if name in ("action", "route") else "right")
    for row in rows:
        cost = row.cost
        shown.add_row(
            row.action, f"{row.num_hosts:,}", row.route, str(row.hops),
            f"{cost.seconds * 1e3:,.2f}", f"{cost.client_messages:,}",
            f"{cost.client_bytes / 1e6:,.2f}", f"{cost.host_messages:,}",
            f"{cost.mean_host_messages:,.1f}", f"{cost.host_bytes / 1e6:,.2f}",
        )  # fmt: skip
    return shown


COLOURS = ["#444", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e"]


def plot(rows: list[Row]) -> str:
    """Return a plot as SVG: time against hosts, both logarithmic, a panel for each action."""
    actions = list(dict.fromkeys(row.action for row in rows))
    routes = list(dict.fromkeys(row.route for row in rows))
    width, height, left, top = 230, 200, 46, 34
    parts = []
    for number, action in enumerate(actions):
        mine = [row for row in rows if row.action == action]
        xs = [math.log10(row.num_hosts) for row in mine]
        ys = [math.log10(row.cost.seconds * 1e3) for row in mine]
        low, high = math.floor(min(ys)), math.ceil(max(ys))
        span = max(xs) or 1.0

        def x(value: float, number: int = number, span: float = span) -> float:
            return number * (width + 60) + left + value / span * width

        def y(value: float, low: int = low, high: int = high) -> float:
            return top + height - (value - low) / max(1, high - low) * height

        parts.append(f'<text x="{x(0)}" y="{top - 12}" font-weight="bold">{action}, ms</text>')
        for tick in range(low, high + 1):
            parts.append(
                f'<line x1="{x(0):.1f}" x2="{x(span):.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
                f'stroke="#ddd"/><text x="{x(0) - 6:.1f}" y="{y(tick) + 4:.1f}" '
                f'text-anchor="end">{10.0**tick:g}</text>'
            )
        for tick in sorted({row.num_hosts for row in mine}):
            parts.append(
                f'<text x="{x(math.log10(tick)):.1f}" y="{top + height + 16}" '
                f'text-anchor="middle">{tick}</text>'
            )
        for route, colour in zip(routes, COLOURS, strict=False):
            points = " ".join(
                f"{x(math.log10(row.num_hosts)):.1f},{y(math.log10(row.cost.seconds * 1e3)):.1f}"
                for row in mine
                if row.route == route
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    for number, (route, colour) in enumerate(zip(routes, COLOURS, strict=False)):
        parts.append(
            f'<text x="{left + number * 90}" y="{top + height + 40}" fill="{colour}">{route}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(actions) * (width + 60)}" '
        f'height="{top + height + 50}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="1,10,100,1000")
    parser.add_argument("--degrees", default="16")
    parser.add_argument("--results", type=Path)
    chosen = parser.parse_args()
    started = time.perf_counter()
    degrees = [0, *map(int, chosen.degrees.split(","))]
    rows = [
        row
        for num_hosts in map(int, chosen.hosts.split(","))
        for degree in degrees
        for row in run(num_hosts, degree)
    ]
    order = list(dict.fromkeys(row.action for row in rows))
    rows.sort(key=lambda row: order.index(row.action))
    Console(width=130).print(table(rows))
    print(f"simulated in {time.perf_counter() - started:.0f} s")
    if chosen.results:
        chosen.results.mkdir(parents=True, exist_ok=True)
        with open(chosen.results / "scale.txt", "w") as file:
            Console(file=file, width=130).print(table(rows))
        (chosen.results / "scale.svg").write_text(plot(rows))


if __name__ == "__main__":
    main()
