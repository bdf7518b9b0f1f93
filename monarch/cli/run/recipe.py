"""``monarch recipe``: lists the installed recipes, and copies one for editing."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from monarch.cli.project import load_project
from monarch.cli.terminal.tables import echo_columns
from monarch.cli.terminal.volume import is_verbose, say
from monarch.config_file import ConfigError, live_keys, load_config
from monarch.config_file.writer import to_commented_toml
from monarch.errors import JobError, MonarchError
from monarch.runs.recipe.catalog import built_in_recipes, summary_of
from monarch.runs.recipe.outline import Outline, outline_of, preload_of, words_of
from monarch.runs.recipe.script_source import is_plain_script
from monarch.runs.record.error_text import in_words
from monarch.runs.record.writing import writing
from monarch.whole_file import OF_PEOPLE, write_whole

FAST_DEV = "FAST_DEV_RUN"

if TYPE_CHECKING:
    from monarch.runs.recipe.recipe import Recipe


def ls() -> None:
    """Print a table of the recipes that are installed."""
    echo_columns([(name, summary_of(module)) for name, module in built_in_recipes().items()])


def show(name: str, is_toml: bool) -> None:
    """Print what a recipe does, and its config with all defaults."""
    recipe = outline_here(name) or recipe_here(name)
    if is_toml:
        click.echo(_config_file(recipe, name), nl=False)
        return
    click.echo(recipe.doc or f"{name} says nothing of itself")
    click.echo()
    click.echo(to_commented_toml(_defaults(recipe)), nl=False)


def cp(name: str, file: Path | None, force: bool) -> None:
    """Copy a recipe, or its config, to ``file``; ``None`` is a name made from the recipe's."""
    recipe = recipe_here(name)
    is_folder = recipe.path is not None and recipe.path.is_dir()
    target = file or Path(f"my_{recipe.name}{'' if is_folder else '.py'}")
    if target.exists() and not force:
        raise JobError(f"{target} is there already; --force writes over it")
    if target.suffix == ".toml":
        with writing(target):
            write_whole(target, _config_file(recipe, name, target), mode=OF_PEOPLE)
        say(f"wrote {target}, all keys of {name} with their defaults. Run it:")
        say(f"    monarch run {name} --config {target}")
        return
    if recipe.path is None:
        raise JobError(f"{name} is written in no file")
    if target.suffix != ("" if is_folder else ".py") or not target.stem.isidentifier():
        like = "my_recipe: this recipe is a folder" if is_folder else "my_recipe.py"
        raise JobError(f"{target} could not be imported: name it like a Python module, {like}")
    with writing(target):
        if is_folder:
            target.mkdir(exist_ok=True)
        for source, copy in _copies(recipe.path, target):
            copy.parent.mkdir(exist_ok=True)
            write_whole(copy, source.read_text(encoding="utf-8"), mode=OF_PEOPLE)
    say(f"wrote {target}, the whole recipe, to be made your own. Run it:")
    say(f"    monarch run {target}")


def validate(
    name: str, overrides: tuple[str, ...], config_file: str | None, procs: int | None
) -> None:
    """Check a recipe and its config, without running it."""
    recipe = outline_here(name) or recipe_here(name)
    loaded = load_config(recipe.config_class, config_file, overrides, os.environ)
    from monarch.cli.run.run_target import find_target  # Takes a while, which errors need not.

    target = find_target(procs, None)
    recipe.check(loaded, target.num_hosts, target.procs_per_host)
    if isinstance(recipe, Outline):  # Importing the recipe takes long.
        validates = recipe_here(name).function("validate") if recipe.defines("validate") else None
    else:
        validates = recipe.function("validate")
    if validates is not None:
        cls = recipe_here(name).config_class  # The outline has a copy of it.
        loaded = load_config(cls, config_file, overrides, os.environ)
        try:
            with loaded.locating_errors():
                validates(loaded.config, target.num_hosts, target.procs_per_host)
        except (ConfigError, MonarchError):
            raise
        except Exception as error:  # The hosts of the run may have what is missing here.
            say(f"the data of {name} could not be looked at here: {in_words(error)}")
    say(f"{name} can run on {target.text}")


def prepare(name: str, folder: Path | None) -> None:
    """Run a recipe's preparation, which makes what it needs before it can run."""
    base, _, variant = name.partition("-")
    if name in built_in_recipes() or base not in built_in_recipes():
        base, variant = name, ""
    recipe = recipe_here(base)
    prepares = recipe.function("prepare")
    if prepares is None:
        raise JobError(f"{recipe.wanted} needs nothing prepared")
    variants = getattr(recipe.module, "PREPARED_VARIANTS", ())
    if variant and variant not in variants:
        names = ", ".join(f"{base}-{each}" for each in variants) or "none"
        raise JobError(f"{base} has no variant {variant!r}; there is: {names}")
    from monarch.cli.terminal.phases import phase

    target = folder or Path(name)
    with writing(target), phase(f"preparing {name}"):
        result = prepares(target)
    say(f"made {result or target}")


def export(name: str, run_or_checkpoint: str, file: Path, force: bool) -> None:
    """Write the weights of a run or a checkpoint, ``run_or_checkpoint``, to ``file``."""
    from monarch.runs.record.folder import find_run

    recipe = recipe_here(name)
    exports = recipe.function("export")
    if exports is None:
        raise JobError(f"{name} has no function `export`: what it saves it alone can read")
    if file.exists() and not force:
        raise JobError(f"{file} is there already; --force writes over it")
    source = Path(run_or_checkpoint)
    if source.suffix != ".pt":
        source = find_run(run_or_checkpoint).checkpoint_dir
    with writing(file):
        say(f"wrote {exports(source, file)}")


def _copies(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Return pairs (source, target) of the files to copy for a recipe.

    A recipe that is a folder has a pair for each of its modules.
    """
    if not source.is_dir():
        return [(source, target)]
    return [(each, target / each.relative_to(source)) for each in sorted(source.rglob("*.py"))]


def recipe_here(name: str) -> Recipe:
    """Return a recipe as ``monarch run`` finds it, with imports from the workspace's folders.

    If it cannot be imported, the command ends with Python's traceback.
    """
    from monarch.cli.terminal.interrupts import interrupt_kept
    from monarch.cli.terminal.phases import phase
    from monarch.runs.recipe.recipe import find_recipe

    if is_plain_script(name):
        from monarch.runs.recipe.plain_script import script_recipe

        return script_recipe(name)
    _import_from_workspace(name)
    try:
        with interrupt_kept(), phase(f"importing {name}, and what it needs"):
            return find_recipe(name)
    except (ConfigError, MonarchError):
        raise
    except Exception as error:
        if is_verbose():
            raise
        _tell_as_python_does(error)
        sys.exit(1)


def _tell_as_python_does(error: Exception) -> None:
    """Print the traceback of a recipe that cannot be imported, from its own first frame on.

    The frames before are ours, and do not concern the reader.
    """
    import importlib
    import traceback

    frames: list[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    names = [frame_of_list.tb_frame.f_code.co_filename for frame_of_list in frames]
    importing = (sys.modules["monarch.runs.recipe.recipe"].__file__, importlib.__file__)
    begins = max((index + 1 for index, name in enumerate(names) if name == importing[0]), default=0)
    while begins < len(names) and (names[begins] in importing or names[begins][:8] == "<frozen "):
        begins += 1
    first = frames[begins] if begins < len(frames) else None
    traceback.print_exception(type(error), error, first)


def outline_here(name: str) -> Outline | None:
    """Return the outline of the recipe ``name``; ``None`` if it has none.

    It is read without importing torch.
    """
    _import_from_workspace(name)
    return outline_of(name)


def preload_here(name: str) -> tuple[str, ...]:
    """Return the modules to import before the procs of the recipe ``name`` start.

    The recipe itself is not imported for it.
    """
    _import_from_workspace(name)
    return preload_of(name)


def fast_dev_here(name: str) -> tuple[str, ...]:
    """Return the overrides with which the recipe ``name`` runs all its code in a few steps.

    Raises ``JobError`` if it declares none.
    """
    _import_from_workspace(name)
    words = words_of(name, FAST_DEV)
    if not words:
        raise JobError(
            f"{name} does not say how it takes all its ways in a few steps: give it {FAST_DEV} = "
            '("num_steps=3", ...), with keys of its config'
        )
    return words


def workspace_first() -> None:
    """Make imports prefer the workspace's modules from now on, as in the ranks of a run."""
    folders = [str(folder.local) for folder in load_project(None).make_workspace().folders]
    sys.path[:] = [*reversed(folders), *(path for path in sys.path if path not in folders)]


def _import_from_workspace(name: str) -> None:
    """Make imports prefer the workspace's modules to installed ones.

    For a built-in recipe, installed modules come first: a ``torch.py`` in the folder does not
    replace torch.
    """
    if name not in built_in_recipes():
        workspace_first()
        return
    folders = [str(folder.local) for folder in load_project(None).make_workspace().folders]
    sys.path += [folder for folder in folders if folder not in sys.path]


def _config_file(recipe: Recipe | Outline, name: str, target: Path | str = "FILE.toml") -> str:
    """Return a config file to start from: all keys, their meaning, and how to run it."""
    head = f"# monarch run {name} --config {target}\n# Keys that you leave out have these values."
    if live_keys(recipe.config_class):
        head += (
            "\n# Those marked (live) may change while the run goes on: edit this file, and save."
        )
    return f"{head}\n\n{to_commented_toml(_defaults(recipe))}"


def _defaults(recipe: Recipe | Outline) -> object:
    """Return the config with all defaults; keys without a default are an error that names them."""
    assert dataclasses.is_dataclass(recipe.config_class)
    return load_config(recipe.config_class).config
