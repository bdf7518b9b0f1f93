"""Runs each recipe once, for a few steps, in a folder of its own; fails if one of them fails.

The recipes use the torch and TorchTitan of the Python that runs this.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

_MONARCH = (sys.executable, "-W", "ignore", "-c", "from monarch.cli.entry import main; main()")
_RUNS = {
    "ddp": ["num_epochs=1"],
    "titan": ["--config", "titan.toml", "training.steps=4"],
    "fault_tolerant": ["num_steps=10"],
}


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for recipe, words in _RUNS.items():
            recipe_folder = Path(folder, recipe)
            recipe_folder.mkdir()
            if recipe == "titan":
                call("recipe", "prepare", "titan-tiny", ".", folder=recipe_folder)
            failed += (status := run(recipe, words, recipe_folder)) != 0
            sys.stdout.write(f"{recipe}: {'ran' if status == 0 else 'FAILED'}\n")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "torchtitan"))
    sys.stdout.write(f"{versions}: {len(_RUNS) - failed} passed, {failed} failed\n")
    return 1 if failed else 0


def run(recipe: str, words: list[str], folder: Path) -> int:
    """Run a recipe, show its output and return its exit status."""
    command = ("run", recipe, "--local", "--procs", "2", *words)
    try:
        return call(*command, folder=folder)
    except subprocess.TimeoutExpired as error:
        sys.stdout.write(f"{error}\n")
        return 1


def call(*words: str, folder: Path) -> int:
    return subprocess.run([*_MONARCH, *words], cwd=folder, check=False, timeout=900).returncode


if __name__ == "__main__":
    sys.exit(main())
