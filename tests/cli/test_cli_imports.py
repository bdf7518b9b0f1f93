"""A command imports what it needs: what it takes until it begins is felt each time."""

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.cli.main import _COMMANDS, cli

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
RELOAD = ("monarch_sync.reload", "monarch_sync.watching", "monarch_sync.replicas")
HEAVY = ("torch", "numpy", "monarch_recipes.ddp", "rich", *RUNTIME, *RELOAD)


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "ddp", "learnig_rate=3"],
        ["run", "fault_tolerant", "chaos=kil@3"],
        ["recipe", "validate", "ddp", "global_batch_size=1"],
        ["run", "--help"],
        ["sync", "--help"],
        ["status"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_imports_no_torch(tmp_path: Path, arguments: list[str]) -> None:
    imported = imported_by(tmp_path, *arguments)
    assert imported.intersection(("torch", "numpy", "sklearn")) == set()


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_help_says_of_a_command_what_the_command_says_of_itself(name: str) -> None:
    command = cli.commands[name]
    assert command.name == name
    assert command.get_short_help_str(limit=200) == _COMMANDS[name][1]
