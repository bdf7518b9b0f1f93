"""A recipe's config is read from its source, without what only a training needs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config_file import ConfigError, load_config, to_toml
from monarch.runs.recipe.catalog import built_in_recipes
from monarch.runs.recipe.outline import Outline, outline_of, preload_of
from monarch.runs.recipe.recipe import find_recipe

Reads = Callable[[str], Outline]

RECIPE = """
'''Trains.'''
from __future__ import annotations
import no_such_library
from dataclasses import dataclass, field
from monarch.config_file import ConfigError, live
from no_such_library import Base

LIMITS = {}
LIMITS["size"] = 8
SIZE = 4

def checked(size):
    if size > LIMITS["size"]:
        raise ConfigError("is too large", key="size")

@dataclass(frozen=True)
class Optimizer:
    rate: float = live(0.1)

@dataclass(frozen=True)
class Config:
    size: int = SIZE
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self):
        checked(self.size)

class Trainer(Base):
    pass

def check(config: Config, num_hosts: int, procs_per_host: int) -> None:
    if num_hosts > 1:
        raise ConfigError("does not fit", key="size")

no_such_library.begin()

def run(config: Config, procs: ProcMesh, record: Record) -> None:
    no_such_library.train(config)
"""


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Reads]:
    read: list[Outline] = []

    def reads(source: str) -> Outline:
        path = tmp_path / "mine.py"
        path.write_text(source)
        outline = outline_of(str(path))
        assert outline is not None
        read.append(outline)
        return outline

    yield reads
    for outline in read:
        outline.forget()


def test_only_what_the_config_depends_on_is_run(reads: Reads) -> None:
    outline = reads(RECIPE)
    assert outline.doc == "Trains."
    assert (
        to_toml(load_config(outline.config_class).config) == "size = 4\n\n[optimizer]\nrate = 0.1\n"
    )
    with pytest.raises(ConfigError, match="is too large"):
        load_config(outline.config_class, None, ["size=9"])
    loaded = load_config(outline.config_class)
    outline.check(loaded, 1, 1)
    with pytest.raises(ConfigError, match="does not fit"):
        outline.check(loaded, 2, 1)


def test_a_class_is_a_recipe_too(reads: Reads) -> None:
    source = RECIPE.replace("def run(config: Config, procs: ProcMesh, record: Record) -> None:", "")
    source = source.replace("    no_such_library.train(config)\n", "")
    source += "class run(Base):\n    def __init__(self, config: 'Config') -> None: ...\n"
    assert [f.name for f in dataclasses.fields(reads(source).config_class)] == ["size", "optimizer"]


@pytest.mark.parametrize(
    "source",
    [
        "def run(config, procs, record): ...",
        "def run(config: int, procs, record): ...",
        "from no_such_library import Config\ndef run(config: Config, procs, record): ...",
        "from os.path import *\n" + RECIPE,
        "def run(:",
        "",
    ],
)
def test_where_the_source_does_not_tell_there_is_none(tmp_path: Path, source: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert outline_of(str(path)) is None
    assert outline_of(str(tmp_path / "missing.py")) is None
    assert outline_of("no.such.module") is None


def test_an_outline_that_is_forgotten_is_no_module(reads: Reads) -> None:
    before = set(sys.modules)
    reads(RECIPE).forget()
    assert not [name for name in set(sys.modules) - before if "outline" in name]


def described(config_class: type[Any]) -> list[tuple[str, Any, Any]]:
    return [
        (field.name, field.type, field.metadata.get("live"))
        for field in dataclasses.fields(config_class)
    ]


@pytest.mark.parametrize("name", [name for name in built_in_recipes() if name != "titan"])
def test_of_a_recipe_of_ours_it_is_the_config_that_an_import_gives(name: str) -> None:
    outline = outline_of(name)
    assert outline is not None
    try:
        recipe = find_recipe(name)
        assert described(outline.config_class) == described(recipe.config_class)
        assert outline.doc == recipe.doc
        assert to_toml(load_config(outline.config_class).config) == to_toml(
            load_config(recipe.config_class).config
        )
    finally:
        outline.forget()


def test_what_procs_preload_is_told_without_importing_it() -> None:
    code = (
        "import sys; from monarch.runs.recipe.catalog import built_in_recipes\n"
        "from monarch.runs.recipe.outline import preload_of\n"
        "for name in built_in_recipes(): print(name, *preload_of(name))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = {line.split()[0]: tuple(line.split()[1:]) for line in done.stdout.splitlines()}
    for name in set(told) - {"titan"}:
        assert told[name] == find_recipe(name).preload
    assert all(told.values())


def test_where_nothing_is_to_be_preloaded_nothing_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for source, expected in {
        RECIPE: (),
        RECIPE + "LIBRARY = 'heavy'\nPRELOAD = (LIBRARY, 'light')\n": ("heavy", "light"),
        RECIPE + "PRELOAD = no_such_library.PRELOAD\n": (),
        "def run(:": (),
    }.items():
        path.write_text(source)
        assert preload_of(str(path)) == expected
    assert preload_of("no.such.module") == ()
