"""Reads from a Python file's source whether it is a recipe or a plain script, and whether it calls
``monarch.step``. Imports and runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from monarch_sync import Workspace

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_RECIPE_PARAMETERS = 3


def is_plain_script(wanted: str) -> bool:
    """Whether the file is a Python file without a recipe: it has no ``run`` function that takes a
    config, procs and a record.
    """
    path = Path(wanted)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # It is reported as a recipe's mistake, with file, line and caret.
    return is_plain(tree)


def is_plain(tree: ast.Module) -> bool:
    """Whether a module is a script, and no recipe."""
    is_started = any(
        isinstance(statement, ast.If) and "'__main__'" in ast.dump(statement.test)
        for statement in tree.body
    )
    for statement in tree.body:
        if isinstance(statement, _FUNCTIONS) and statement.name == "run":
            arguments = statement.args
            positional = [*arguments.posonlyargs, *arguments.args]
            is_recipe = len(positional) >= _RECIPE_PARAMETERS and positional[0].annotation
            return not is_recipe and is_started
        if "run" in _bound_by(statement):
            return is_started
    # A file with definitions only is taken for a recipe, whose error says what it lacks.
    return is_started or any(map(_acts, tree.body))


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement does something, rather than define a name."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.For, ast.While, ast.With, ast.AsyncFor, ast.AsyncWith))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def calls_step(path: Path) -> bool:
    """Whether a script, or a module beside it that it imports, imports monarch to call ``step``."""
    files = [path]
    for file in files:  # It grows meanwhile.
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        if _names_step(tree):
            return True
        files += set(_modules_beside(tree, path.parent)).difference(files)
    return False


def _names_step(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "monarch":
            if any(alias.name == "step" for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "monarch.step":
            return True
    return False


def _modules_beside(tree: ast.Module, folder: Path) -> Iterator[Path]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in names:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                yield file


def path_there(script: str, workspace: Workspace) -> str:
    """Return the script's path in a copy of the workspace; "" if it is outside the workspace."""
    path = str(Path(script).resolve())
    for folder in workspace.folders:
        if inside := folder.inside(path):
            return folder.remote_of(inside)
    return ""
