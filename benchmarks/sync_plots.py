"""What a one-line edit costs, against the number of files and against the number of hosts.

    python benchmarks/sync_plots.py [--on FOLDER] [--runs 5] [--to docs]

Medians from the call of the push until all hosts have committed, by the engine alone (see
`sync_sides.py`), and by tuned rsync where it is installed. Prints it, and draws
`sync_latency.svg`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from svg import Panel, plot
from sync_sides import Ours, Rsync, has_rsync

Lines = dict[str, list[tuple[float, float]]]

TOLD = "ours, the watcher names the file"
LOOKS = "ours, every file is looked at"
RSYNC = "rsync, daemon with TCP_NODELAY"


def plant(root: Path, num_files: int) -> None:
    """Write small files that look like Python, 40 in a folder."""
    rand = random.Random(0)
    for i in range(num_files):
        folder = root / f"pkg{i // 40}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"    value_{k} = {rand.random()}" for k in range(rand.randrange(30, 250))]
        (folder / f"module{i % 40}.py").write_text("\n".join([f"def f{i}():", *lines]) + "\n")


def measure(where: Path, num_files: int, num_hosts: int, num_runs: int) -> dict[str, float]:
    """Return the medians in milliseconds, by the name of the line in the plot."""
    base = Path(tempfile.mkdtemp(prefix="bench-sync-", dir=where))
    source = base / "source"
    plant(source, num_files)
    ours = Ours(source, base, num_hosts, min(num_hosts, 8))
    rsync = Rsync(source, base, num_hosts) if has_rsync() else None
    path = source / "pkg0/module7.py"
    try:
        ours.push()
        if rsync is not None:
            rsync.push()
        time.sleep(0.1)  # so that no file is as young as its scan
        ours.push()
        found: dict[str, list[float]] = {}
        for run in range(num_runs):
            sides: list[tuple[str, Callable[[], object]]] = [
                (TOLD, lambda: ours.push([path])),
                (LOOKS, ours.push),
            ]
            if rsync is not None:
                sides.append((RSYNC, rsync.push))
            for name, push in sides:
                with open(path, "a") as file:
                    file.write(f"# {run} {name}\n")
                started = time.perf_counter()
                push()
                found.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
        return {name: statistics.median(times) for name, times in found.items()}
    finally:
        ours.close()
        if rsync is not None:
            rsync.close()
        shutil.rmtree(base)


def sweep(cases: list[tuple[int, int, int]], where: Path, num_runs: int) -> Lines:
    """Measure each case, which is (x, files, hosts), and return the points of each line."""
    lines: Lines = {}
    for x, num_files, num_hosts in cases:
        medians = measure(where, num_files, num_hosts, num_runs)
        shown = ", ".join(f"{name} {value:.2f} ms" for name, value in medians.items())
        print(f"{num_files:,} files, {num_hosts} hosts: {shown}", flush=True)
        for name, value in medians.items():
            lines.setdefault(name, []).append((x, value))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path("/dev/shm")
    default = shared if shared.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--on", type=Path, default=default)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--to", type=Path, default=Path("docs"))
    parser.add_argument("--files", type=int, nargs="+", default=[100, 500, 2000, 10000, 20000])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    args = parser.parse_args()
    by_files = sweep([(n, n, 1) for n in args.files], args.on, args.runs)
    by_hosts = sweep([(n, 2000, n) for n in args.hosts], args.on, args.runs)
    panels = [
        Panel("One-line edit, 1 host", "files in the workspace", by_files),
        Panel("One-line edit, 2,000 files", "hosts, all on this machine", by_hosts),
    ]
    note = (
        f"medians of {args.runs}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        "benchmarks/sync_plots.py"
    )
    args.to.mkdir(parents=True, exist_ok=True)
    (args.to / "sync_latency.svg").write_text(plot(panels, note))


if __name__ == "__main__":
    main()
