"""What `monarch sync --watch` takes from a save until its line says that all hosts have committed.

    python benchmarks/watch.py [--hosts 8] [--files 2000] [--edits 40]

`monarch apply` starts the host agents on this machine; nothing runs on them. `told` ends with the
line of the watch, for which a file that nobody has loaded is parsed, too; `committed` is the push
itself, without the way from the kernel's event to it. Processor time is a push's: of the watching
process, and of one host agent until the line is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sync import plant  # type: ignore[attr-defined]

MONARCH = [sys.executable, "-c", "from monarch.cli.main import main; main()"]
_PAUSE_SECONDS = 0.4  # until everybody is done with the push before


def monarch(folder: Path, *words: str) -> None:
    subprocess.run([*MONARCH, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def used(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        total += int(thread.read_text().split()[0])
    return total / 1e9


def host_pids(folder: Path) -> list[int]:
    told = subprocess.run(
        [*MONARCH, "sync", "status", "--json"], cwd=folder, check=True, capture_output=True
    )
    num_hosts = len(json.loads(told.stdout)["hosts"])
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    mine = [pid for pid in pids if _is_host_agent(pid, folder)]
    assert len(mine) == num_hosts, f"{len(mine)} host agents of {num_hosts} found"
    return mine


def _is_host_agent(pid: int, folder: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        is_agent = b"monarch.runtime.entry.host_main" in command
        return is_agent and Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def measure(folder: Path, num_edits: int) -> None:
    hosts = host_pids(folder)
    watch = subprocess.Popen(
        [*MONARCH, "sync", "--watch", "--json"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert watch.stdout is not None
    file = folder / "pkg3" / "module7.py"
    rows: list[tuple[float, float, float, float]] = []
    try:
        while json.loads(watch.stdout.readline())["event"] != "watching":
            pass
        for edit in range(num_edits):
            time.sleep(_PAUSE_SECONDS)
            before = used(watch.pid), sum(map(used, hosts))
            text = f"{file.read_text()}# {edit}\n"
            saved_at = time.perf_counter()
            file.write_text(text)
            push = json.loads(watch.stdout.readline())
            told = time.perf_counter() - saved_at
            assert push["ok"], push
            author = used(watch.pid) - before[0]
            host = (sum(map(used, hosts)) - before[1]) / len(hosts)
            rows.append((told, push["seconds"], author, host))
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait(20)
    names = ("told", "committed", "processor, author", "processor, each host")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        middle, most = statistics.median(values) * 1e3, max(values) * 1e3
        print(f"{name:<22} median {middle:6.2f} ms   at most {most:6.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--edits", type=int, default=40)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(folder, options.files, random.Random(0))
        (folder / "monarch.toml").write_text(f"[job]\nhosts = {{ trainers = {options.hosts} }}\n")
        monarch(folder, "apply")
        try:
            measure(folder, options.edits)
        finally:
            monarch(folder, "kill")


if __name__ == "__main__":
    main()
