"""Pushes by monarch_sync and by tuned rsync, side by side, in one run.

    python benchmarks/sync.py [--on FOLDER ...] [--runs 5] [--rows nothing edit ...]

Prints a table for every folder (by default one on tmpfs and one on disk): medians in milliseconds
of ours and rsync's, and how many times ours is faster, beside what is to be reached. Ours is the
engine alone, one process a host over loopback TCP (`sync_sides.py`): no runtime, no reload. rsync
has a daemon on loopback with TCP_NODELAY at both ends, and is given the save as a present: it is
timed from its start, without a watcher. `load` is the load average at the end: what is measured on
a busy machine is an upper bound.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from sync_sides import Ours, Rsync, has_rsync

from monarch_sync import Watcher
from monarch_sync.touched import Touched

NUM_HOSTS = 8
_AFTERMATH_SECONDS = 0.15  # what our hosts do after their answers is not to be in rsync's way


class Result(NamedTuple):
    """The medians of one row of the table, in seconds unless ``unit`` says that they are bytes."""

    ours: float
    rsync: float | None
    unit: str = "ms"


class Bench:
    """A tree of files, which both sides mirror, and the number of runs of each row."""

    def __init__(self, base: Path, num_files: int, num_hosts: int, num_runs: int) -> None:
        self.source = base / "source"
        self.num_runs = num_runs
        self._random = random.Random(0)
        plant(self.source, num_files, self._random)
        self.ours = Ours(self.source, base, num_hosts)
        self.rsync = Rsync(self.source, base, num_hosts)

    def fill(self, *, is_ours_first: bool = True) -> Result:
        """Measure the first sync of both sides.

        On a disk the second side has an advantage: the file system's tables are in memory by then.
        """
        taken = {}
        for push in (self.ours.push, self.rsync.push)[:: 1 if is_ours_first else -1]:
            os.sync()  # what was written before is not to be written in what we measure
            taken[push] = seconds(push)
        return Result(taken[self.ours.push], taken[self.rsync.push])

    def compare(
        self, change: Callable[[int], list[Path]], ours: Callable[[list[Path]], None] | None = None
    ) -> Result:
        """Change the tree and have both sides follow, ``num_runs`` times.

        Returns the medians.
        """
        push = ours or self.ours.push
        mine, theirs = [], []
        for run in range(self.num_runs):
            touched = change(run)
            mine.append(seconds(lambda touched=touched: push(touched)))
            time.sleep(_AFTERMATH_SECONDS)
            theirs.append(seconds(self.rsync.push))
        return Result(statistics.median(mine), statistics.median(theirs))

    def edit(self, run: int) -> list[Path]:
        path = self.source / "pkg3" / "module7.py"
        lines = path.read_text().splitlines()
        lines[len(lines) // 2] = f"    value = {run}, {self._random.random()}"
        path.write_text("\n".join(lines) + "\n")
        return [path]

    def close(self) -> None:
        self.ours.close()
        self.rsync.close()


def plant(root: Path, num_files: int, rand: random.Random) -> None:
    """Write small files that look like Python, 1 to 15 KB, 40 in a folder."""
    for i in range(num_files):
        folder = root / f"pkg{i // 40}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"    value_{k} = {rand.random()}" for k in range(rand.randrange(30, 450))]
        (folder / f"module{i % 40}.py").write_text("\n".join([f"def f{i}():", *lines]) + "\n")


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@contextmanager
def bench(where: Path, num_files: int, num_hosts: int, num_runs: int) -> Iterator[Bench]:
    base = Path(tempfile.mkdtemp(prefix="bench-sync-", dir=where))
    made = Bench(base, num_files, num_hosts, num_runs)
    try:
        yield made
    finally:
        made.close()
        _LEFT.append(base)


_LEFT: list[Path] = []  # to be deleted at the end: ext4 is slow to make files after deletions


def nothing(b: Bench) -> Result:
    """Measure ``sync_workspace`` when nothing has changed, with a watcher that proves it."""
    with closing(Watcher(b.ours.workspace)) as watcher:
        b.ours.push(watcher.changes())
        return b.compare(lambda run: [], lambda _: b.ours.push(_vouched(watcher)))


def _vouched(watcher: Watcher) -> Touched:
    touched = watcher.changes()
    assert touched is not None, watcher.polls_because
    return touched


def audit(b: Bench) -> Result:
    """Measure a call without a watcher when nothing has changed: it looks at every file."""
    return b.compare(lambda run: [], lambda _: b.ours.push())


def edit(b: Bench) -> Result:
    """Measure a push of one edited file, which the watcher names."""
    with closing(Watcher(b.ours.workspace)) as watcher:
        b.ours.push(watcher.changes())
        return b.compare(b.edit, lambda _: b.ours.push(_vouched(watcher)))


def wire(b: Bench) -> Result:
    """Measure how many bytes a push of one edited file sends, to hosts that count as distant."""
    mine, theirs = [], []
    for view in b.ours.views:
        view.is_near = False
    for run in range(b.num_runs):
        touched = b.edit(run)
        before = b.ours.bytes_sent, b.rsync.bytes_sent
        b.ours.push(touched)
        b.rsync.push()
        mine.append(b.ours.bytes_sent - before[0])
        theirs.append(b.rsync.bytes_sent - before[1])
    for view in b.ours.views:
        view.is_near = True
    hosts = len(b.ours.views)
    return Result(statistics.median(mine) / hosts, statistics.median(theirs) / hosts, "B/host")


def save(b: Bench) -> Result:
    """Measure the time from a save until all hosts have committed, with the watcher."""
    watcher = Watcher(b.ours.workspace)
    committed, is_ready = threading.Event(), threading.Event()

    def follow() -> None:
        for touched in watcher:
            is_ready.set()
            before = b.ours.generation
            b.ours.push(touched or None)
            if b.ours.generation > before:
                committed.set()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        while not is_ready.wait(0.05):
            (b.source / "pkg0/module0.py").touch()
        mine, theirs = [], []
        for run in range(b.num_runs):
            time.sleep(0.5)  # the watcher falls quiet
            committed.clear()
            started = time.perf_counter()
            b.edit(run)
            assert committed.wait(30)
            mine.append(time.perf_counter() - started)
            theirs.append(seconds(b.rsync.push))
    finally:
        watcher.close()
        thread.join()
    return Result(statistics.median(mine), statistics.median(theirs))


def branch_edit(b: Bench, run: int, *, again: bool) -> list[Path]:
    """Rewrite 100 files, and return their paths.

    With ``again``, two known contents alternate; otherwise each run writes new contents.
    """
    rand = random.Random(run % 2 if again else run + 1000)
    paths = [b.source / f"pkg{i % 50}" / f"module{i // 50 + 20}.py" for i in range(100)]
    for path in paths:
        path.write_text("".join(f"value = {rand.random()}\n" for _ in range(300)))
    return paths


def branch(b: Bench) -> Result:
    return b.compare(lambda run: branch_edit(b, run, again=False))


def branch_back(b: Bench) -> Result:
    for run in range(2):
        b.ours.push(branch_edit(b, run, again=True))
        b.rsync.push()
    return b.compare(lambda run: branch_edit(b, run, again=True))


def window(b: Bench) -> Result:
    """Measure how long a tree is being changed during a push.

    Ours is the time from the first Commit to the last answer. rsync's is its whole session with all
    hosts, as it renames files during that.
    """
    b.ours.committing.clear()
    result = b.compare(lambda run: branch_edit(b, run, again=False))
    return Result(statistics.median(b.ours.committing), result.rsync)


def rename(b: Bench) -> Result:
    """Measure a rename of a folder with half of all files, of which the watcher tells."""
    inside = b.source / "half"
    if not inside.exists():
        inside.mkdir()
        packages = sorted(b.source.glob("pkg*"))[10:]
        for package in packages[: len(packages) * 3 // 4]:
            package.rename(inside / package.name)
        b.ours.push()
        b.rsync.push()
    names = [inside, b.source / "moved"]

    def change(run: int) -> list[Path]:
        old, new = names if names[0].exists() else names[::-1]
        old.rename(new)
        return [old, new]

    with closing(Watcher(b.ours.workspace)) as watcher:
        b.ours.push(watcher.changes())
        return b.compare(change, lambda _: b.ours.push(_vouched(watcher)))


def first(where: Path, num_hosts: int, num_runs: int) -> Result:
    results = []
    for run in range(num_runs):
        with bench(where, 2000, num_hosts, 1) as b:
            results.append(b.fill(is_ours_first=run % 2 == 0))
    return _median(results)


def big(where: Path, mib: int, num_runs: int) -> tuple[Result, Result]:
    """Measure one large file in which 4 KiB are rewritten, beside rsync and ``rsync --inplace``."""
    with bench(where, 1, 1, num_runs) as b:
        path = b.source / "big.bin"
        block = random.Random(1).randbytes(1 << 20)
        with open(path, "wb") as file:
            for i in range(mib):
                file.write(i.to_bytes(8, "big") + block[8:])
        b.fill()

        def change(run: int) -> list[Path]:
            with open(path, "r+b") as file:
                file.seek(mib << 19)
                file.write(os.urandom(4096))
            return [path]

        plain = b.compare(change)
        inplace = []
        for run in range(num_runs):
            time.sleep(1)  # rsync takes a file of the same size and second for unchanged
            change(run)
            inplace.append(seconds(lambda: b.rsync.push("--inplace")))
    return plain, Result(plain.ours, statistics.median(inplace))


def thousand(where: Path, num_runs: int) -> Result:
    """Measure a one-line edit in a small tree with 1,000 replicas, in two processes."""
    base = Path(tempfile.mkdtemp(prefix="bench-sync-", dir=where))
    plant(base / "source", 20, random.Random(0))
    ours = Ours(base / "source", base, 1000, 2)
    ours.push()
    path = base / "source/pkg0/module7.py"
    times = []
    for run in range(num_runs):
        path.write_text(path.read_text() + f"# {run}\n")
        times.append(seconds(lambda: ours.push([path])))
    ours.close()
    shutil.rmtree(base)
    return Result(statistics.median(times), None)


def _median(results: list[Result]) -> Result:
    theirs = [r.rsync for r in results if r.rsync is not None]
    return Result(
        statistics.median(r.ours for r in results), statistics.median(theirs) if theirs else None
    )


ROWS: dict[str, tuple[str, str, Callable[[Bench], Result]]] = {
    "nothing": ("nothing changed (the watcher says so), 8 hosts", "100×", nothing),
    "audit": ("nothing changed, every file looked at", "", audit),
    "edit": ("one-line edit, 8 hosts", "40×", edit),
    "wire": ("bytes on the wire, one-line edit", "50×", wire),
    "save": ("save until all 8 have committed", "10×", save),
    "branch": ("100-file branch switch, 8 hosts", "5×", branch),
    "back": ("back to a branch known before", "30×", branch_back),
    "window": ("hosts hold different versions, 100 files", "30×", window),
    "rename": ("big directory renamed", "100×", rename),
}
SINGLE_ROWS = ("first", "large", "big", "thousand")


def measure(where: Path, rows: list[str], num_runs: int, big_mib: int) -> None:
    print(f"\n{where}: 2,000 files unless said, medians of {num_runs}", flush=True)
    print(f"{'work':48}{'ours':>12}{'rsync':>12}{'ratio':>9}  to reach")
    if "first" in rows:
        line("first sync, 1 host", "1×", first(where, 1, num_runs))
        line("first sync, 8 hosts", "2×", first(where, NUM_HOSTS, num_runs))
    if shared := [row for row in ROWS if row in rows]:
        with bench(where, 2000, NUM_HOSTS, num_runs) as b:
            b.fill()
            time.sleep(0.1)  # so that no file is as young as its scan
            b.ours.push()
            for row in shared:
                text, target, run = ROWS[row]
                line(text, target, run(b))
    if "large" in rows:
        with bench(where, 20000, 1, num_runs) as b:
            b.fill()
            time.sleep(0.1)
            b.ours.push()
            line("one-line edit, 20,000 files, 1 host", "100×", edit(b))
    if "big" in rows:
        plain, inplace = big(where, big_mib, num_runs)
        line(f"{big_mib} MiB file, 4 KiB edit", "5×", plain)
        line("  the same, rsync --inplace", "1.5×", inplace)
    if "thousand" in rows:
        line("1,000 agents, one-line edit", "<300 ms", thousand(where, num_runs))
    print(f"load {os.getloadavg()[0]:.1f}")


def line(text: str, target: str, result: Result) -> None:
    ratio = "" if result.rsync is None else f"{result.rsync / result.ours:.1f}×"
    if result.unit == "ms":
        ours, rsync = (
            "" if value is None else f"{value * 1000:.1f} ms"
            for value in (result.ours, result.rsync)
        )
    else:
        ours, rsync = f"{result.ours:,.0f} B", f"{result.rsync:,.0f} B"
    print(f"{text:48}{ours:>12}{rsync:>12}{ratio:>9}  {target}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", nargs="+", type=Path, default=_default_folders())
    parser.add_argument("--rows", nargs="+", default=[*SINGLE_ROWS, *ROWS])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--big-mib", type=int, default=1024)
    args = parser.parse_args()
    if not has_rsync():
        sys.exit("rsync is missing: install it (apt-get install rsync), then run this again")
    for where in args.on:
        try:
            measure(where, args.rows, args.runs, args.big_mib)
        finally:
            while _LEFT:
                shutil.rmtree(_LEFT.pop())


def _default_folders() -> list[Path]:
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return [folder for folder in folders if folder.is_dir()]


if __name__ == "__main__":
    main()
