"""How long a save takes until all processes of a mesh run it, on this machine: median and p99.

    python benchmarks/switch.py [NUM_EDITS]

One file of 200 is edited and pushed, again and again, with a pause of 20 ms; after each push both
processes are asked, and must run the new code. The first ten edits are left out. `PYTHONPATH` with
the folders of another checkout measures that one: take both in turns, on a quiet machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host
from monarch_sync import Workspace

NUM_FILES, NUM_PROCS, NUM_LEFT_OUT = 200, 2, 10
PAUSE_SECONDS = 0.02


class Runner(Actor):
    @endpoint
    def value(self) -> int:
        import edited  # type: ignore[import-not-found]

        return int(edited.value())


def write(root: Path, value: int) -> None:
    (root / "edited.py").write_text(f"def value():\n    return {value}\n")


async def measure(root: Path, num_edits: int) -> list[float]:
    """Return the seconds of each push, in order of length."""
    host, workspace = this_host(), Workspace(dirs={root: ""})
    await host.sync_workspace(workspace)
    runners = host.spawn_procs({"gpus": NUM_PROCS}).spawn("runner", Runner)
    times = []
    for number in range(num_edits + NUM_LEFT_OUT):
        write(root, number)
        started = time.perf_counter()
        (await host.sync_workspace(workspace)).raise_for_errors()
        times.append(time.perf_counter() - started)
        assert set((await runners.value.call()).values()) == {number}
        await asyncio.sleep(PAUSE_SECONDS)
    return sorted(times[NUM_LEFT_OUT:])


def main() -> None:
    num_edits = int(sys.argv[1]) if sys.argv[1:] else 300
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(NUM_FILES):
            (root / f"other{number}.py").write_text(f"NUMBER = {number}\n")
        write(root, -1)
        sys.path.insert(0, folder)
        times = asyncio.run(measure(root, num_edits))
    p99 = times[int(len(times) * 0.99)]
    print(f"p50 {statistics.median(times) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, {num_edits} edits")


if __name__ == "__main__":
    main()
