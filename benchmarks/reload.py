"""How long a one-function edit takes to reload, in a project of many modules.

    python benchmarks/reload.py [--modules 200] [--edits 40] [--torch] [--audit]

Each module has classes and functions, and imports from the ones before it; two long ones have
dataclasses, enums, decorators and closures. Prints medians and the slowest, in ms: `prepare` passes
while the old code runs on, `commit` is when it switches. With `--audit` instead: how long the look
at all that lives takes, and what a training loop beside it pays.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from monarch.runtime.workspace.preparing import Breaks
from monarch_reload import Reloader


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


_LONG_HEAD = """from __future__ import annotations

import dataclasses
import enum
import functools

LIMIT = 3
TABLE = {}


def register(function):
    TABLE[function.__name__] = function
    return function
"""
_LONG_PART = """

class Kind{k}(enum.Enum):
    ONE = "one"
    TWO = "two"

    @property
    def title(self) -> str:
        return self.value.title()


@dataclasses.dataclass(frozen=True)
class Config{k}:
    size: int = {k}
    rate: float = 0.5
    kind: Kind{k} = Kind{k}.ONE

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {{self.size}}")

    def scaled(self, factor: float) -> Config{k}:
        return dataclasses.replace(self, rate=self.rate * factor)


class Model{k}:
    default = Config{k}()

    def __init__(self, config: Config{k}) -> None:
        self.config = config
        self.num_steps = 0

    def step(self, x: float) -> float:
        self.num_steps += 1
        if self.config.kind is Kind{k}.TWO:
            return x * self.config.rate + LIMIT
        return sum(x / n for n in range(1, self.config.size + {k}))

    @functools.cached_property
    def loss(self) -> float:
        return compute{k}(self.step(1.0), self.num_steps)


@register
def compute{k}(value: float, steps: int = {k}) -> float:
    def part(number: int) -> float:
        return value / (number + 1)

    total = 0.0
    for number in range(steps):
        total += part(number)
        if total > LIMIT:
            break
    return total
"""


def long_text(num_lines: int) -> str:
    num_parts = (num_lines - _LONG_HEAD.count("\n")) // _LONG_PART.count("\n")
    return _LONG_HEAD + "".join(_LONG_PART.format(k=k) for k in range(num_parts))


Case = tuple[Path, str, Callable[[int], str]]  # what stands in the file, and what instead


def long_cases(package: Path) -> Iterator[tuple[str, Case]]:
    for num_lines in (500, 1500):
        path = package / f"long{num_lines}.py"
        path.write_text(long_text(num_lines))
        yield (
            f"a method body, of {num_lines} lines",
            (path, "LIMIT\n        return sum(", lambda n: f"LIMIT + {n}\n        return sum("),
        )
        yield (
            f"a function body, of {num_lines} lines",
            (path, "total = 0.0", lambda n: f"total = {n}.0"),
        )
        yield (
            f"a dataclass field, of {num_lines} lines",
            (path, "rate: float = 0.5", lambda n: f"rate: float = 0.{n + 6}"),
        )


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
            cases: dict[str, Case] = {
                "a method body": (path, "self.x + y + 3", lambda n: f"self.x + y + 3 + {n + 1}"),
                "a function body that others import": (
                    path,
                    f"def f{middle}(x):\n    return ",
                    lambda n: f"def f{middle}(x):\n    return {n + 1} + ",
                ),
                "a new method": (
                    path,
                    "class K3:\n",
                    lambda n: f"class K3:\n    def new{n}(self):\n        return {n}\n",
                ),
                "a constant that others read": (
                    path,
                    "LIMIT = ",
                    lambda n: f"LIMIT = {n + 1} + ",
                ),
                **dict(long_cases(package)),
            }
            for path, _, _ in cases.values():
                importlib.import_module(f"project.{path.stem}")
            print(f"{'edit':<36} {'prepare':>14} {'commit':>14}   ms: median (slowest)")
            for title, (path, old, new) in cases.items():
                text = path.read_text()
                assert old in text
                prepare, commit = [], []
                for number in range(count):
                    path.write_text(text.replace(old, new(number), 1))
                    report = reloader.reload([path])
                    prepare.append(1000 * report.prepare_seconds)
                    commit.append(1000 * report.seconds)
                path.write_text(text)
                reloader.reload([path])
                columns = (f"{statistics.median(t):.2f} ({max(t):.2f})" for t in (prepare, commit))
                print(f"{title:<36} " + " ".join(f"{column:>14}" for column in columns))
        sys.path.remove(folder)


def measure_audit(modules: int, seconds: float = 2.0, rounds: int = 5) -> None:
    """Measure an audit, and how much it slows the steps of a training loop, as ratios of pairs."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        root = Path(folder)
        for number in range(modules):
            (root / f"audited{number}.py").write_text(module_text(0))
        reloader = Reloader([folder])
        for number in range(modules):
            importlib.import_module(f"audited{number}")
            path = root / f"audited{number}.py"
            path.write_text(path.read_text().replace("size = ", "size = 1 + "))
        reloader.reload()
        began, worked = time.perf_counter(), time.process_time()
        report = reloader.audit()
        took, used = time.perf_counter() - began, time.process_time() - worked
        print(f"{len(gc.get_objects()):,} objects, {report.num_looked_at:,} looked at")
        print(f"audit alone: {took * 1000:.0f} ms, {used * 1000:.0f} ms of a processor")
        ratios, times = [], []
        for number in range(rounds):
            steps = {}
            for is_audited in (True, False) if number % 2 else (False, True):
                thread = threading.Thread(target=lambda: times.append(_paused_audit(reloader)))
                if is_audited:
                    thread.start()
                steps[is_audited] = _train(seconds)
                if is_audited:
                    thread.join()
            ratios.append(steps[True] / steps[False])
        print(f"beside training: {statistics.median(times) * 1000:.0f} ms")
        print(f"steps with an audit / without, in {seconds:g} s: {statistics.median(ratios):.3f}")
        sys.path.remove(folder)


def _paused_audit(reloader: Reloader) -> float:
    began = time.perf_counter()
    reloader.audit(pause=Breaks())
    return time.perf_counter() - began


def _train(seconds: float) -> float:
    """Return the steps a second of a training loop.

    It does arithmetic, and waits for a device a third of the time.
    """
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        sum(number * number for number in range(20_000))
        time.sleep(0.0005)
        steps += 1
    return steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=200)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--torch", action="store_true", help="with torch loaded")
    parser.add_argument("--audit", action="store_true", help="the audit after a reload")
    options = parser.parse_args()
    if options.torch:
        importlib.import_module("torch")
    if options.audit:
        measure_audit(options.modules)
        return
    measure(options.modules, options.edits)


if __name__ == "__main__":
    main()
