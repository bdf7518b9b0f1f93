"""Print the longest files of the product, and the small files that only one other file imports.

It is a report, and no rule: the length of a file alone is no reason to split or join it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("monarch", "sync/monarch_sync", "sync/monarch_reload", "recipes/monarch_recipes")
NUM_LONGEST = 20
SMALL_FILE_LINES = 70


def main() -> None:
    paths = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to((ROOT / package).parent).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    lines = {name: len(path.read_text().splitlines()) for name, path in paths.items()}
    print(f"{sum(lines.values())} lines in {len(lines)} files\n\nThe longest:")
    for name in sorted(lines, key=lambda name: -lines[name])[:NUM_LONGEST]:
        print(f"  {lines[name]:5}  {name}")

    importers = defaultdict(set)
    for name, path in paths.items():
        for imported in imported_modules(name, path, paths):
            importers[imported].add(name)
    print(f"\nShorter than {SMALL_FILE_LINES} lines, with one importer:")
    for name, path in sorted(paths.items()):
        is_small = path.name != "__init__.py" and lines[name] < SMALL_FILE_LINES
        if is_small and len(importers[name]) == 1:
            print(f"  {lines[name]:5}  {name}, imported by {importers[name].pop()}")


def imported_modules(name: str, path: Path, paths: dict[str, Path]) -> set[str]:
    """Return the modules that the file at ``path`` imports, relative imports resolved."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                modules.add(full if full in paths else source)
    return modules


if __name__ == "__main__":
    main()
