"""How long commands and small programs take to begin, beside what they are made of.

    python benchmarks/starts.py [--rounds N]

Prints a JSON object a line: median CPU seconds (user and system, of the program and whom it waited
for) and wall seconds, and the ratio of CPU seconds to the base. The commands are held against a
program that imports `click` and what prints tables in `rich` (`rich.console`, `rich.table`) and
does nothing; `import monarch.actor`, and a program that spawns one proc, calls it and ends, against
one that imports whatever `monarch.actor` imports of others (asyncio, msgspec, cloudpickle, ...).
All are run in turn, so that what else the machine does meets all alike. Our bytecode is compiled
first, as by `make setup`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = """
import sys
before = set(sys.modules)
import monarch.actor
ours = ("monarch", "monarch_sync", "monarch_reload")
names = [n for n in sys.modules if n not in before and n.partition(".")[0] not in ours]
print("\\n".join(names))
"""
# One that is made by another, and that cannot be imported by its name, costs nothing.
IMPORT = """
import importlib
for name in {names}:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""
CALL = """
from monarch.actor import Actor, endpoint, this_host

class Small(Actor):
    @endpoint
    def answer(self):
        return 42

assert this_host().spawn_procs().spawn("small", Small).answer.call_one().get() == 42
"""
COMMANDS = (
    "--help", "--version", "rus", "recipe ls", "recipe show ddp", "recipe validate ddp rate=1",
    "runs ls", "runs show", "run --help", "sync --help", "status",
)  # fmt: skip


def spent(command: Sequence[str], folder: str) -> tuple[float, float]:
    """Run a command once, and return its CPU seconds and wall seconds."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for package in ("monarch", "sync", "recipes"):
        compileall.compile_dir(ROOT / package, quiet=2)

    def python(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    listed = subprocess.run(python(OTHERS), capture_output=True, text=True, check=True).stdout
    imports = IMPORT.format(names=listed.split())
    monarch = "from monarch.cli.entry import main; import sys; sys.argv[0] = 'monarch'; main()"
    programs = {
        "python": python("pass"),
        "import click, rich.console, rich.table": python("import click, rich.console, rich.table"),
        **{f"monarch {line}": [*python(monarch), *line.split()] for line in COMMANDS},
        "what monarch.actor imports of others": python(imports),
        "import monarch.actor": python("import monarch.actor"),
        "one proc spawned and called": python(CALL),
    }
    with tempfile.TemporaryDirectory() as folder:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, command in programs.items():
                times[name].append(spent(command, folder))
    cpu = {name: statistics.median(one for one, _ in each) for name, each in times.items()}
    for name, each in times.items():
        row: dict[str, object] = {
            "program": name,
            "cpu_seconds": round(cpu[name], 4),
            "wall_seconds": round(statistics.median(one for _, one in each), 4),
        }
        if name.startswith("monarch "):
            row["ratio"] = round(cpu[name] / cpu["import click, rich.console, rich.table"], 2)
        elif name in ("import monarch.actor", "one proc spawned and called"):
            row["ratio"] = round(cpu[name] / cpu["what monarch.actor imports of others"], 2)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
