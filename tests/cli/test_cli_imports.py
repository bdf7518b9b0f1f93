"""A command imports what it needs: what it takes until it begins is felt each time."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import click
import pytest

from monarch.cli.commands import cli

SHOW_MODULES = """
import sys
sys.argv = ["monarch", *sys.argv[1:]]
from monarch.cli.main import main
try:
    main()
finally:
    print("\\n".join(sys.modules), file=open("modules", "w"))
"""
RUNTIME = ("asyncio", "zmq", "cloudpickle", "monarch.actor", "monarch.runtime.node")
RELOAD = ("monarch_reload", "monarch_sync.watching", "monarch_sync.replicas")
HEAVY = ("torch", "numpy", "monarch_recipes.ddp", "rich", *RUNTIME, *RELOAD)
# What `monarch --help` imports of ours.
DECLARING = {
    "monarch", "monarch.cli", "monarch.cli.commands", "monarch.cli.main", "monarch.cli.options",
    "monarch.cli.debug", "monarch.cli.debug.debug", "monarch.cli.debug.debug_commands",
    "monarch.cli.hosts", "monarch.cli.hosts.hosts", "monarch.cli.hosts.host_commands",
    "monarch.cli.observe", "monarch.cli.observe.commands",
    "monarch.cli.runs", "monarch.cli.runs.runs", "monarch.cli.runs.runs_commands",
    "monarch.cli.sync", "monarch.cli.sync.commands",
    "monarch.cli.terminal", "monarch.cli.terminal.terminal", "monarch.cli.terminal.interrupts",
    "monarch.cli.terminal.keys", "monarch.cli.terminal.streams", "monarch.cli.terminal.volume",
    "monarch.compat", "monarch.compat.finder",
    "monarch.errors", "monarch.offers", "monarch.version",
    "monarch_sync", "monarch_sync.words",
}  # fmt: skip


def imported_by(folder: Path, *arguments: str) -> set[str]:
    subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, *arguments],
        cwd=folder, check=False, timeout=60, capture_output=True,
    )  # fmt: skip
    return set((folder / "modules").read_text().splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["rus"],
        ["recipe", "--help"],
        ["recipe", "ls"],
        ["recipe", "show", "ddp"],
        ["recipe", "show", "fault_tolerant"],
        ["recipe", "validate", "ddp", "learnig_rate=3"],
        ["recipe", "shwo", "ddp"],
        ["runs", "--help"],
        ["runs", "ls"],
        ["runs", "show"],
        ["runs", "compare", "a", "b"],
    ],
    ids=" ".join,
)
def test_a_light_command_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    imported = imported_by(tmp_path, *arguments)
    assert "click" in imported
    assert imported.intersection(HEAVY) == set()


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "ddp", "learnig_rate=3"],
        ["run", "fault_tolerant", "chaos=kil@3"],
        ["recipe", "validate", "ddp", "global_batch_size=1"],
        ["status"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_imports_no_torch(tmp_path: Path, arguments: list[str]) -> None:
    imported = imported_by(tmp_path, *arguments)
    assert imported.intersection(("torch", "numpy", "sklearn")) == set()


@pytest.mark.long
def test_the_help_of_all_commands_reads_no_project_and_no_recipe(tmp_path: Path) -> None:
    """It is made of what is declared: of ours, only where commands are declared is imported."""
    (tmp_path / "monarch.toml").write_text("[job")
    for path in all_commands(cli):
        imported = imported_by(tmp_path, *path, "--help")
        ours = {name for name in imported if name.partition(".")[0].startswith("monarch")}
        assert ours <= DECLARING, path
        assert imported.intersection(HEAVY) == set(), path


def all_commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Each with the names that lead to it."""
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from all_commands(inner, *path, name)


def test_a_declared_command_calls_a_function_that_takes_its_options() -> None:
    num_checked = 0
    for path in all_commands(cli):
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        function = command.callback
        assert function is not None
        context = [object()] if "f" in inspect.getclosurevars(function).nonlocals else []
        bound = inspect.getclosurevars(inspect.unwrap(function, stop=_calls_a_target)).nonlocals
        if "target" not in bound:
            continue  # It does its work where it is declared.
        module, _, name = bound["target"].partition(":")
        options = {
            str(param.name): None
            for param in command.params
            if getattr(param, "expose_value", True)
        }
        inspect.signature(getattr(import_module(module), name)).bind(
            *context, **options, **bound["fixed"]
        )
        num_checked += 1
    assert num_checked > 40


def _calls_a_target(function: FunctionType) -> bool:
    return "target" in function.__code__.co_freevars


def test_the_help_lists_every_command_with_its_first_sentence() -> None:
    page = " ".join(cli.get_help(click.Context(cli, terminal_width=1000)).split())
    for name, command in cli.commands.items():
        if command.hidden:
            assert f" {name} {command.get_short_help_str(limit=1000)}" not in page
            continue
        assert f"{name} {command.get_short_help_str(limit=1000)}" in page
        assert not command.get_short_help_str(limit=200).endswith("..."), "cut off in the help"
