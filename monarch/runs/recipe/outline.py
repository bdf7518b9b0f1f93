"""A recipe's config, check and preloaded modules, read from its source without the imports that
only a training needs.

A recipe imports torch, which takes seconds; its config is a dataclass of numbers and words. So only
those statements of its module are run on which the config or ``check`` depends. If the source does
not show these, or they fail, there is no outline: the recipe must be imported, and its import
raises the error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from monarch.config_file import LoadedConfig
from monarch.config_file.types import is_config
from monarch.runs.recipe.catalog import built_in_recipes, is_package, source_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Outline:
    """The outline of a recipe; ``config_class`` has the recipe's own fields, but is another
    class."""

    def __init__(self, source: _RecipeSource, annotation: ast.expr) -> None:
        self.path = path = source.path
        self.doc = ast.get_docstring(source.tree) or ""
        self._tree = source.tree
        self._ran: set[ast.stmt] = set()
        self._module = ModuleType(f"{source.module} (outline)")
        self._module.__dict__.update(__file__=str(path), __package__=source.package)
        # Where dataclasses and typing look for the names in a class's annotations.
        sys.modules[self._module.__name__] = self._module
        self._run(_names_in([annotation]))
        code = compile(ast.Expression(annotation), str(path), "eval", dont_inherit=True)
        self.config_class: type[Any] = eval(code, self._module.__dict__)

    def check(self, loaded: LoadedConfig[Any], num_hosts: int, procs_per_host: int) -> None:
        """Ask the recipe's ``check`` whether a config fits so many procs, as ``Recipe`` does."""
        self._run({"check"})
        check = getattr(self._module, "check", None)
        if callable(check):
            with loaded.locating_errors():
                check(loaded.config, num_hosts, procs_per_host)

    def defines(self, name: str) -> bool:
        """Whether the recipe's own module has a function of that name."""
        return any(isinstance(each, _FUNCTIONS) and each.name == name for each in self._tree.body)

    def forget(self) -> None:
        """Remove it from ``sys.modules``, before other code uses it as the recipe."""
        sys.modules.pop(self._module.__name__, None)

    def _run(self, names: set[str]) -> None:
        wanted = _statements_for(self._tree, names)
        needed = [each for each in wanted if each not in self._ran or _is_future(each)]
        self._ran.update(needed)
        exec(_compiled(needed, self.path), self._module.__dict__)


def outline_of(wanted: str) -> Outline | None:
    """Return the outline of the recipe that ``wanted`` names (a built-in recipe, a file, a module,
    or ``module:name``); ``None`` if its source does not show it.
    """
    found = _source_of(wanted)
    if found is None:
        return None
    try:
        annotation = _annotation(found.tree, wanted.partition(":")[2] or "run")
        outline = Outline(found, annotation) if annotation else None
    except Exception:
        return None
    return outline if outline and is_config(outline.config_class) else None


def preload_of(wanted: str) -> tuple[str, ...]:
    """Return the modules to import before the recipe's procs start: its ``PRELOAD``, if any."""
    return words_of(wanted, "PRELOAD")


def words_of(wanted: str, name: str) -> tuple[str, ...]:
    """Return the words under a name in the recipe's module; empty if it has none."""
    found = _source_of(wanted)
    if found is None:
        return ()
    try:
        found = found.defining(name)
        names: dict[str, Any] = {"__file__": str(found.path), "__package__": found.package}
        needed = _statements_for(found.tree, {name}, in_strings=False)
        exec(_compiled(needed, found.path), names)
        return tuple(names.get(name, ()))
    except Exception:
        return ()


def _compiled(statements: list[ast.stmt], path: Path) -> CodeType:
    tree = ast.Module(statements, type_ignores=[])
    code: CodeType = compile(tree, str(path), "exec", dont_inherit=True)
    return code


@dataclass(frozen=True)
class _RecipeSource:
    tree: ast.Module
    path: Path
    module: str

    @property
    def package(self) -> str:
        is_folder = self.path.name == "__init__.py"
        return self.module if is_folder else self.module.rpartition(".")[0]

    def defining(self, name: str) -> _RecipeSource:
        """Return this source, or that of the file beside it from which it imports ``name``."""
        for each in self.tree.body:
            if not (isinstance(each, ast.ImportFrom) and each.level == 1 and each.module):
                continue
            if name in [alias.asname or alias.name for alias in each.names]:
                path = self.path.parent.joinpath(*each.module.split(".")).with_suffix(".py")
                module = f"{self.package}.{each.module}"
                return _RecipeSource(ast.parse(path.read_bytes()), path, module)
        return self


def _source_of(wanted: str) -> _RecipeSource | None:
    place = wanted.partition(":")[0]
    known = built_in_recipes()
    path: Path | None
    is_folder = place not in known and is_package(Path(place))
    if Path(place).suffix == ".py" or is_folder:
        path, module = Path(place, "__init__.py" if is_folder else ""), Path(place).stem
        other = source_of(module)
        if other is not None and not (path.exists() and path.samefile(other)):
            return None  # The name of another module, which an import would give instead.
    else:
        module = known.get(place, place)
        path = source_of(module)
    if path is None or path.suffix != ".py":
        return None
    try:
        return _RecipeSource(ast.parse(path.read_bytes()), path, module)
    except (OSError, SyntaxError, ValueError):
        return None


def _annotation(tree: ast.Module, entry: str) -> ast.expr | None:
    """Return the annotation of the entry's config.

    It is on the first parameter of a function, or the second of a class's ``__init__``.
    """
    for statement in tree.body:
        if isinstance(statement, _FUNCTIONS) and statement.name == entry:
            return _of_parameter(statement, 0)
        if isinstance(statement, ast.ClassDef) and statement.name == entry:
            for method in statement.body:
                if isinstance(method, _FUNCTIONS) and method.name == "__init__":
                    return _of_parameter(method, 1)
    return None


def _of_parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, index: int) -> ast.expr | None:
    parameters = [*function.args.posonlyargs, *function.args.args]
    annotation = parameters[index].annotation if len(parameters) > index else None
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _statements_for(
    tree: ast.Module, names: set[str], *, in_strings: bool = True
) -> list[ast.stmt]:
    """Return the statements that bind or change ``names``, and those that they need, in their
    order."""
    bound = {statement: _bound_by(statement) for statement in tree.body}
    taken: set[ast.stmt] = set()
    while True:
        more = {each for each in bound if each not in taken and bound[each] & names}
        if not more:
            return [each for each in tree.body if each in taken or _is_future(each)]
        taken |= more
        names |= _names_in(more, in_strings=in_strings)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds, or whose contents it assigns to."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    bound: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            if node.name == "*":
                raise ImportError("what `import *` binds is not to be seen in the source")
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(
            node.ctx, ast.Load
        ):
            bound |= _names_in([node])
    return bound


def _names_in(nodes: Iterable[ast.AST], *, in_strings: bool = True) -> set[str]:
    """Return all names in the nodes; with ``in_strings`` also those in annotations that are
    strings."""
    found: set[str] = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif in_strings and isinstance(node, ast.Constant) and str(node.value).isidentifier():
                found.add(str(node.value))
    return found
