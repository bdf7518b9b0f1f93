"""The files that the house's documents send their readers to are where they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([\w./]+\.py)`")


def all_files() -> set[str]:
    tops = ["monarch", "sync", "recipes", "tests", "examples", "benchmarks", "tools"]
    return {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")}


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_named_files_are_there(document: str) -> None:
    """A name without a folder means a file beside the one named before it in the same line."""
    files = all_files()
    for line in (ROOT / document).read_text().splitlines():
        folders: set[str] = set()
        for name in NAMED.findall(line):
            if "/" in name:
                found = {file for file in files if f"/{file}".endswith(f"/{name}")}
                folders = {str(Path(file).parent) for file in found}
            else:
                found = {file for file in files if Path(file).name == name}
                if folders:
                    found &= {f"{folder}/{name}" for folder in folders}
            assert found, f"{name} in: {line}"
