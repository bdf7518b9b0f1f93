"""How long a one-function edit takes to reload, in a project of many modules.

    python benchmarks/reload.py [--modules 200] [--edits 40] [--torch]

Each module has classes and functions, and imports from the ones before it. Prints medians and
the slowest, in ms: `prepare` passes while the old code runs on, `commit` is when it switches.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import tempfile
from pathlib import Path

from monarch_sync.reload import Reloader


def module_text(number: int) -> str:
    imports = "".join(
        f"from project.m{other} import f{other}, LIMIT as L{other}\n"
        for other in range(max(0, number - 3), number)
    )
    reads = f"L{number - 1} + 1" if number % 10 == 1 else str(number)
    parts = [f"import functools\n{imports}LIMIT = {reads}\nTABLE = {{}}\n"]
    for k in range(8):
        parts.append(
            f"class K{k}:\n    size = {k}\n    def __init__(self, x):\n        self.x = x\n"
            f"    def step(self, y):\n        return self.x + y + {k}\n"
            "    @property\n    def twice(self):\n        return self.x * 2\n"
        )
        parts.append(f"def g{k}(a, b={k}):\n    c = a * b\n    return c + LIMIT\n")
    calls = f"f{number - 1}(x) + " if number else ""
    parts.append(f"def f{number}(x):\n    return {calls}x\n")
    return "\n".join(parts)


def measure(modules: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "project")
        package.mkdir()
        (package / "__init__.py").write_text("")
        for number in range(modules):
            (package / f"m{number}.py").write_text(module_text(number))
        sys.path.insert(0, folder)
        with Reloader([folder]) as reloader:
            for number in range(modules):
                importlib.import_module(f"project.m{number}")
            middle = modules // 2
            path = package / f"m{middle}.py"
            text = path.read_text()
            cases = {
                "a method body": ("self.x + y + 3", lambda n: f"self.x + y + 3 + {n + 1}"),
                "a function body that others import": (
                    f"def f{middle}(x):\n    return ",
                    lambda n: f"def f{middle}(x):\n    return {n + 1} + ",
                ),
                "a new method": (
                    "class K3:\n",
                    lambda n: f"class K3:\n    def new{n}(self):\n        return {n}\n",
                ),
                "a constant that others read": ("LIMIT = ", lambda n: f"LIMIT = {n + 1} + "),
            }
            print(f"{'edit':<36} {'prepare':>14} {'commit':>14}   ms: median (slowest)")
            for title, (old, new) in cases.items():
                assert old in text
                prepare, commit = [], []
                for number in range(count):
                    path.write_text(text.replace(old, new(number)))
                    report = reloader.reload([path])
                    prepare.append(1000 * report.prepare_seconds)
                    commit.append(1000 * report.seconds)
                path.write_text(text)
                reloader.reload([path])
                columns = (f"{statistics.median(t):.2f} ({max(t):.2f})" for t in (prepare, commit))
                print(f"{title:<36} " + " ".join(f"{column:>14}" for column in columns))
        sys.path.remove(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=200)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--torch", action="store_true", help="with torch loaded")
    options = parser.parse_args()
    if options.torch:
        importlib.import_module("torch")
    measure(options.modules, options.edits)


if __name__ == "__main__":
    main()
