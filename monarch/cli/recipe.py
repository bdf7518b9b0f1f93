"""``monarch recipe``: what recipes there are, and how to make one your own."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monarch.cli.project import load_project
from monarch.cli.volume import say
from monarch.config_file import live_keys, load_config
from monarch.config_file.writer import to_commented_toml
from monarch.errors import JobError
from monarch.runs.catalog import built_in_recipes, summary_of
from monarch.runs.outline import Outline, outline_of, preload_of
from monarch.runs.whole_file import write_whole, writing

if TYPE_CHECKING:
    from monarch.runs.recipe import Recipe

__all__ = ["outline_here", "preload_here", "recipe", "recipe_here"]


@click.group()
def recipe() -> None:
    """Recipes: what there is, and how to make one your own."""


@recipe.command("ls")
def ls() -> None:
    """List the recipes that are installed."""
    known = built_in_recipes()
    width = max(map(len, known), default=0)
    for name, module in known.items():
        click.echo(f"{name:<{width}}  {summary_of(module)}")


@recipe.command("show")
@click.argument("name", metavar="RECIPE")
@click.option("--toml", "is_toml", is_flag=True, help="only the config, as a file to begin with")
def show(name: str, is_toml: bool) -> None:
    """Show what a recipe does, and its config with all defaults.

    What is printed after the description is a config file with what each key means; keys marked
    (live) may change while a run goes on: edit the file that the run was given, and save.
    """
    found = outline_here(name) or recipe_here(name)
    if is_toml:
        click.echo(_config_file(found, name), nl=False)
        return
    click.echo(found.doc or f"{name} says nothing of itself")
    click.echo()
    click.echo(to_commented_toml(_defaults(found)), nl=False)


@recipe.command("cp")
@click.argument("name", metavar="RECIPE")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="write over a file that is there")
def cp(name: str, file: Path | None, force: bool) -> None:
    """Copy a recipe to FILE, which runs as it is: `monarch run FILE`.

    FILE is my_RECIPE.py if not given. One that ends with .toml gets the config instead.
    """
    found = recipe_here(name)
    target = file or Path(f"my_{found.name}.py")
    if target.exists() and not force:
        raise JobError(f"{target} is there already; --force writes over it")
    if target.suffix == ".toml":
        with writing(target):
            write_whole(target, _config_file(found, name, target))
        say(f"wrote {target}, all keys of {name} with their defaults. Run it:")
        say(f"    monarch run {name} --config {target}")
        return
    if found.path is None:
        raise JobError(f"{name} is written in no file")
    if target.suffix != ".py" or not target.stem.isidentifier():
        raise JobError(
            f"{target} could not be imported: name it like a Python module, my_recipe.py"
        )
    with writing(target):
        write_whole(target, found.path.read_text(encoding="utf-8"))
    say(f"wrote {target}, the whole recipe, to be made your own. Run it:")
    say(f"    monarch run {target}")


@recipe.command("validate")
@click.argument("name", metavar="RECIPE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config", "config_file", help="a TOML file for the recipe")
@click.option("--procs", type=click.IntRange(min=1), help="procs on each host")
def validate(
    name: str, overrides: tuple[str, ...], config_file: str | None, procs: int | None
) -> None:
    """Check a recipe and its config, without running it. Exits with 2 if something is wrong."""
    found = outline_here(name) or recipe_here(name)
    loaded = load_config(found.config_class, config_file, overrides, os.environ)
    from monarch.cli.place import find_place  # Takes a while, which a mistake need not wait for.

    place = find_place(procs, None)
    found.check(loaded, place.num_hosts, place.procs_per_host)
    say(f"{name} can run on {place.text}")


@recipe.command("prepare")
@click.argument("name")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def prepare(name: str, folder: Path | None) -> None:
    """Make what a recipe needs before it can run: data, a tokenizer, a config.

    NAME is a recipe, or a recipe with a variant of it, as in titan-tiny. It goes into FOLDER,
    which is NAME if not given.
    """
    whole, _, variant = name.partition("-")
    if name in built_in_recipes() or whole not in built_in_recipes():
        whole, variant = name, ""
    found = recipe_here(whole)
    prepares = found.function("prepare")
    if prepares is None:
        raise JobError(f"{found.wanted} needs nothing prepared")
    variants = getattr(found.module, "PREPARED_VARIANTS", ())
    if variant and variant not in variants:
        there = ", ".join(f"{whole}-{each}" for each in variants) or "none"
        raise JobError(f"{whole} has no variant {variant!r}; there is: {there}")
    from monarch.cli.phases import phase

    target = folder or Path(name)
    with writing(target), phase(f"preparing {name}"):
        made = prepares(target)
    say(f"made {made or target}")


@recipe.command("export")
@click.argument("name", metavar="RECIPE")
@click.argument("what", metavar="[RUN|CHECKPOINT]", default="latest")
@click.argument("file", type=click.Path(path_type=Path), default=Path("model.safetensors"))
@click.option("--force", is_flag=True, help="write over a file that is there")
def export(name: str, what: str, file: Path, force: bool) -> None:
    """Write the weights of a run to FILE, as plain safetensors.

    Of a run they are the best where it kept these (extras.keep_best), else those it saved last.
    """
    from monarch.runs.folder import find_run

    found = recipe_here(name)
    exports = found.function("export")
    if exports is None:
        raise JobError(f"{name} has no function `export`: what it saves it alone can read")
    if file.exists() and not force:
        raise JobError(f"{file} is there already; --force writes over it")
    place = Path(what)
    if place.suffix != ".pt":
        place = find_run(what).checkpoint_dir
    with writing(file):
        say(f"wrote {exports(place, file)}")


def recipe_here(name: str) -> Recipe:
    """A recipe as ``monarch run`` finds it, with the workspace's folders to import from."""
    from monarch.cli.phases import phase
    from monarch.cli.stopping import interrupt_kept
    from monarch.runs.recipe import find_recipe

    _import_from_workspace()
    with interrupt_kept(), phase(f"importing {name}, and what it needs"):
        return find_recipe(name)


def outline_here(name: str) -> Outline | None:
    """What can be told of that recipe without importing torch, if anything."""
    _import_from_workspace()
    return outline_of(name)


def preload_here(name: str) -> tuple[str, ...]:
    """What that recipe's procs should find imported, told without importing it."""
    _import_from_workspace()
    return preload_of(name)


def _import_from_workspace() -> None:
    for folder in load_project(None).make_workspace().folders:
        if str(folder.local) not in sys.path:
            sys.path.insert(0, str(folder.local))


def _config_file(found: Recipe | Outline, name: str, target: Path | str = "FILE.toml") -> str:
    """A config file to begin with: all keys, what they mean, and how to run it."""
    head = f"# monarch run {name} --config {target}\n# Keys that you leave out have these values."
    if live_keys(found.config_class):
        head += (
            "\n# Those marked (live) may change while the run goes on: edit this file, and save."
        )
    return f"{head}\n\n{to_commented_toml(_defaults(found))}"


def _defaults(found: Recipe | Outline) -> object:
    """The config with nothing given; keys that have no default are an error that names them."""
    assert dataclasses.is_dataclass(found.config_class)
    return load_config(found.config_class).config
