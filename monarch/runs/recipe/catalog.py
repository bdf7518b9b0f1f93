"""Lists the installed recipes, their source files, and their descriptions."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

RECIPES = "monarch.recipes"


def built_in_recipes() -> dict[str, str]:
    """Return the module of each installed recipe, by name."""
    points = importlib.metadata.entry_points(group=RECIPES)
    return {point.name: point.value for point in sorted(points, key=lambda point: point.name)}


def is_package(path: Path) -> bool:
    """Whether a path names a folder that Python imports as one module: ``my_recipe/``."""
    return path.name.isidentifier() and (path / "__init__.py").is_file()


def source_of(module: str) -> Path | None:
    """Return a module's source file, found without importing it; ``None`` if it has none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def summary_of(module: str) -> str:
    """Return the first line of a module's docstring, without importing it."""
    path = source_of(module)
    try:
        source = path.read_text(encoding="utf-8") if path else ""
        return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    except (OSError, ValueError, SyntaxError):
        return ""
