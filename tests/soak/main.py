"""Shakes the runtime for a while, and looks at what it leaves: `make soak`.

    SOAK_SECONDS=600 SOAK_SEED=7 python -m tests.soak.main
    SOAK_OF=run python -m tests.soak.main  # a training instead: see `edited_run.py`

Several players make random moves on meshes of their own, on hosts that they share. In between
they rest: all that they had is audited and stopped, and what is left is measured. The seed
decides the moves of each player; how they meet in time is the machine's affair.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil

# Growth that is none: CPython and malloc keep what a busier moment needed (8 MB payloads, 2,000
# queued messages), differently after each round, and threads come with arenas of their own. A leak
# of one kilobyte a message would be a hundred times as much in ten minutes.
TOLERATED_MB = {"client": 60.0, "hosts": 30.0, "templates": 10.0}
TOLERATED_COUNT = 4
NUM_PLAYERS = 3
REST_SECONDS = 60.0


class Measure(NamedTuple):
    """The resources in use while no player plays. Memory in MB; of hosts and templates the largest
    one."""

    seconds: float
    client: float
    hosts: float
    templates: float
    descriptors: int
    threads: int
    host_descriptors: int
    procs: int
    shm: int
    files: int
    ports: int


def main() -> int:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    seed = os.environ.get("SOAK_SEED") or str(random.SystemRandom().randrange(10**6))
    if os.environ.get("SOAK_OF", "runtime") == "run":
        from tests.soak.edited_run import soak_run

        return soak_run(seconds, seed)
    mark = uuid.uuid4().hex
    os.environ["SOAK_MARK"] = mark
    print(f"soak: {seconds:.0f} s, seed {seed} (SOAK_SEED={seed} repeats the moves)", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as folder:
        os.chmod(folder, 0o700)
        os.environ["MONARCH_RUNTIME_DIR"] = folder
        wrongs = soak(seconds, seed, folder)
        left = [path for path in Path(folder).rglob("*") if not path.is_dir()]
        wrongs += [f"left behind: {path}" for path in left]
    wrongs += [f"an orphan: {name}" for name in marked(mark) - {f"{os.getpid()}"}]
    for wrong in wrongs[:20]:
        print(f"WRONG: {wrong}", flush=True)
    print(f"soak: {len(wrongs)} wrongs" if wrongs else "soak: all well", flush=True)
    return 1 if wrongs else 0


def soak(seconds: float, seed: str, folder: str) -> list[str]:
    # Imported here: the environment above is for the runtime too.
    import monarch.actor
    from monarch.actor import shutdown_context, this_host
    from monarch.job import ProcessJob
    from tests.soak.players import Ground, Player, threads_of

    job = ProcessJob({"left": 1, "right": 1})
    state = job.state(cached_path=None)
    pids = {host.mesh: host.pid for host in job.hosts}
    hosts = {"here": this_host(), "left": state.left, "right": state.right}
    ground = Ground(hosts, {"here": os.getpid(), **pids})
    monarch.actor.unhandled_fault_hook = ground.on_fault
    rest = threading.Barrier(NUM_PLAYERS + 1)
    players = [Player(ground, f"p{n}", f"{seed}/{n}", rest) for n in range(NUM_PLAYERS)]
    threads = list(threads_of(players))
    started = time.monotonic()
    for thread in threads:
        thread.start()
    interval = min(REST_SECONDS, max(2.0, seconds / 8))
    measures: list[Measure] = []
    try:
        while time.monotonic() - started < seconds and all(t.is_alive() for t in threads):
            wait_until(time.monotonic() + interval, started, ground)
            for player in players:
                player.wants_rest.set()
            rest.wait(300)
            measures.append(measure(time.monotonic() - started, ground, folder))
            print(f"  at rest: {show(measures[-1])}", flush=True)
            for player in players:
                player.wants_rest.clear()
            rest.wait(300)
    except threading.BrokenBarrierError:
        ground.wrong("a player hangs:\n" + stacks())
        rest.abort()
    ground.stop.set()
    for thread in threads:
        thread.join(120.0)
        if thread.is_alive():
            ground.wrong(f"{thread.name} hangs:\n{stacks()}")
    measures.append(measure(time.monotonic() - started, ground, folder))
    print_table(measures, ground)
    shutdown_context().get(timeout=60)
    job.kill()
    return ground.wrongs + growth(measures)


def wait_until(end: float, started: float, ground: object) -> None:
    while time.monotonic() < end:
        time.sleep(min(5.0, max(0.0, end - time.monotonic())))
        moves = ground.moves  # type: ignore[attr-defined]
        num = sum(count for move, count in moves.items() if move not in _AMOUNTS)
        print(
            f"  {time.monotonic() - started:5.0f} s: {num} moves, {moves['messages']} messages, "
            f"{moves['bytes'] / 1e6:.0f} MB, {moves['faults']} faults, "
            f"{len(ground.wrongs)} wrongs",  # type: ignore[attr-defined]
            flush=True,
        )


_AMOUNTS = ("messages", "bytes", "faults")


def measure(seconds: float, ground: object, folder: str) -> Measure:
    from monarch.runtime import process

    hosts = [psutil.Process(pid) for pid in ground.host_pids.values()]  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while (procs := num_procs(hosts)) and time.monotonic() < deadline:
        time.sleep(0.05)
    gc.collect()
    client, *agents = hosts
    templates = templates_of(hosts)
    names = [name for _, _, found in os.walk(folder) for name in found if "host.log" not in name]
    return Measure(
        seconds,
        megabytes(client),
        max(map(megabytes, agents)),
        max(map(megabytes, templates), default=0.0),
        client.num_fds(),
        client.num_threads(),
        max(agent.num_fds() for agent in agents),
        procs,
        len(shared_files(hosts)),
        len(names),
        len(process.current().node.calls),
    )


def shared_files(hosts: list[psutil.Process]) -> set[str]:
    """The files of shared memory that these use. Others of this machine have theirs."""
    maps = [Path(f"/proc/{one.pid}/maps").read_text() for one in hosts]
    lines = "".join(maps).splitlines()
    return {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}


def templates_of(hosts: list[psutil.Process]) -> list[psutil.Process]:
    # The hosts are children of the client.
    return [child for host in hosts for child in host.children() if child not in hosts]


def num_procs(hosts: list[psutil.Process]) -> int:
    count = 0
    for template in templates_of(hosts):
        try:
            count += len(template.children(recursive=True))
        except psutil.Error:
            pass
    return count


def megabytes(one: psutil.Process) -> float:
    try:
        return float(one.memory_info().rss) / 1e6
    except psutil.Error:
        return 0.0


def growth(measures: list[Measure]) -> list[str]:
    """The growth from the end of the warm-up, which is the first quarter, to the end."""
    if len(measures) < 2:
        return ["nothing was measured"]
    base, last = measures[len(measures) // 4], measures[-1]
    found = [f"{last.procs} procs run while nobody plays"] if last.procs else []
    for name, tolerated in TOLERATED_MB.items():
        more = getattr(last, name) - getattr(base, name)
        if more > tolerated:
            found.append(f"the memory of {name} has grown by {more:.1f} MB")
    for name in ("descriptors", "threads", "host_descriptors", "shm", "files", "ports"):
        more = getattr(last, name) - getattr(base, name)
        if more > TOLERATED_COUNT:
            found.append(f"{name}: {more} more than after the warm-up")
    return found


def show(one: Measure) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in zip(one._fields, one, strict=True))


def print_table(measures: list[Measure], ground: object) -> None:
    print("  ".join(f"{name:>16}" for name in Measure._fields))
    for one in measures:
        print("  ".join(f"{value:16.1f}" for value in one))
    moves = ground.moves  # type: ignore[attr-defined]
    print("  ".join(f"{move} {count}" for move, count in sorted(moves.items())), flush=True)


def stacks() -> str:
    import traceback

    parts = []
    for number, frame in sys._current_frames().items():
        parts.append(f"thread {number}:\n" + "".join(traceback.format_stack(frame)[-6:]))
    return "\n".join(parts)


def marked(mark: str) -> set[str]:
    """The processes of this run that are left, once they have had time to end."""
    deadline = time.monotonic() + 10
    while True:
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.add(name)
            except OSError:
                pass
        if len(found - {str(os.getpid())}) == 0 or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
