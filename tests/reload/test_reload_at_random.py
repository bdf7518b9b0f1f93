"""Random edits of random programs: what was reloaded is what a new process would have."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from monarch_reload import AuditReport, Reloader, ReloadError

from .random_programs import MODULES, Program

# To look for more: RELOAD_SEEDS=1000:3000
_FIRST, _, _LAST = os.environ.get("RELOAD_SEEDS", "0:40").partition(":")


def _is_long(seed: int) -> bool:
    return seed >= 5 and "RELOAD_SEEDS" not in os.environ


_NUM_EDITS = 6
_METHODS = (FunctionType, property)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("random_"):
            del sys.modules[name]


def write(folder: Path, package: str, texts: dict[str, str]) -> None:
    place = folder / package
    place.mkdir(exist_ok=True)
    for name, text in {"__init__": "", **texts}.items():
        path = place / f"{name}.py"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    importlib.invalidate_caches()


def load(package: str) -> dict[str, ModuleType]:
    return {name: importlib.import_module(f"{package}.{name}") for name in MODULES}


def shown(program: Program, modules: dict[str, ModuleType]) -> dict[str, object]:
    return {
        f"{module}: {probe}": eval(probe, vars(modules[module]))
        for module, probe in program.probes()
    }


def instances_of(modules: dict[str, ModuleType]) -> dict[str, object]:
    """An instance of each class, held by nobody else."""
    found: dict[str, object] = {}
    for module in modules.values():
        for name, value in vars(module).items():
            if name.startswith("class"):
                found[f"{module.__name__}.{name}"] = value()
    return found


def closures_of(program: Program, modules: dict[str, ModuleType]) -> dict[str, Any]:
    """What each maker makes, held by nobody else."""
    return {
        f"{module}.{name}": getattr(modules[module], name)(eval(given))
        for module, name, given in program.makers()
    }


def told_as_gone(
    program: Program, closures: dict[str, list[Any]], instances: dict[str, object]
) -> dict[str, int]:
    """What an audit has to tell, with how often: what is held, while no file has it any more.

    That is the functions of makers and the methods of classes, and the instances.
    """
    told = {
        name: sum(len(codes_in(one)) for one in made)
        for name, made in closures.items()
        if not program.has(*name.split("."))
    }
    counts = Counter(map(type, instances.values()))
    for cls, count in counts.items():
        module = cls.__module__.rpartition(".")[2]
        if not program.has(module, cls.__name__):
            methods = [one for one in vars(cls).values() if isinstance(one, _METHODS)]
            told[f"{module}.{cls.__name__}"] = len(methods) + count
    return told


def told_by(audit: AuditReport) -> dict[str, int]:
    told: Counter[str] = Counter()
    for finding in audit.findings:
        assert finding.kind == "gone", finding
        told[".".join(finding.name.split(".")[1:3])] += finding.count
    return dict(told)


def codes_in(thing: Any) -> list[tuple[str, list[int | None]]]:
    """The functions in what a maker has made, with the lines of each."""
    if isinstance(thing, functools.partial):
        return [*codes_in(thing.func), *(one for part in thing.args for one in codes_in(part))]
    if not isinstance(thing, FunctionType):
        own = vars(type(thing)).values()
        return [one for part in own if isinstance(part, FunctionType) for one in codes_in(part)]
    lines = [line for *_, line in thing.__code__.co_lines()]
    return [(thing.__code__.co_name, lines)]


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.long] if _is_long(seed) else [])
        for seed in range(int(_FIRST), int(_LAST))
    ],
)
def test_a_reload_gives_what_a_new_process_would(seed: int, folder: Path) -> None:
    package = f"random_{seed}"
    program = Program(seed, package)
    write(folder, package, program.texts())
    with Reloader([folder]) as reloader:
        modules = load(package)
        instances: dict[str, object] = {}
        closures: dict[str, list[Any]] = {}
        for number in range(_NUM_EDITS):
            instances |= instances_of(modules)
            for name, made in closures_of(program, modules).items():
                closures.setdefault(name, []).append(made)
            before = shown(program, modules)
            texts = program.texts()
            broken = MODULES[(seed + number) % len(MODULES)]
            program.edit()
            now = program.texts()
            write(folder, package, {**now, broken: f"{now[broken]}1 / 0\n"})
            with pytest.raises(ReloadError):
                reloader.reload()
            write(folder, package, texts)
            assert {key: shown_now(modules, key) for key in before} == before, "it is taken back"

            write(folder, package, now)
            reloader.reload()
            audit = reloader.audit()
            fresh = f"{package}_{number}"
            write(folder, fresh, {name: text.replace(package, fresh) for name, text in now.items()})
            anew = load(fresh)
            assert shown(program, modules) == shown(program, anew)
            told, gone = told_by(audit), told_as_gone(program, closures, instances)
            assert told.keys() == gone.keys(), audit
            # An instance that nobody holds may not be collected yet.
            assert all(told[name] >= count for name, count in gone.items()), audit
            for name, made in closures_of(program, anew).items():
                for closure in closures.get(name, ()):
                    assert closure(3) == made(3), name
                    assert codes_in(closure) == codes_in(made), name
            for name, instance in instances.items():
                module, _, cls = name.rpartition(".")
                if hasattr(sys.modules[module], cls):
                    assert type(instance) is getattr(sys.modules[module], cls)


def shown_now(modules: dict[str, ModuleType], key: str) -> object:
    module, _, probe = key.partition(": ")
    return eval(probe, vars(modules[module]))
