"""The files that documents, and folders' docstrings, send their readers to are where they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([\w./]+\.py)`")


def all_files() -> set[str]:
    tops = ["monarch", "sync", "recipes", "tests", "examples", "benchmarks", "tools"]
    return {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")}


@pytest.mark.parametrize(
    "document",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md", "docs/security.md"],
)
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


def test_files_that_folders_name_in_their_docstrings_are_there() -> None:
    """A name without a folder means a file of the folder itself."""
    files = all_files()
    named = 0
    for path in sorted(file for file in files if file.endswith("/__init__.py")):
        folder = Path(path).parent
        for name in NAMED.findall(ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""):
            found = [file for file in files if file.endswith(f"/{name}") or file == name]
            if "/" not in name:
                found = [file for file in found if Path(file).parent == folder]
            assert found, f"{name} in {path}"
            named += 1
    assert named > 150
