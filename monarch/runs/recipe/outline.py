"""A recipe's config, check and preloaded modules, read from its source without its slow imports.

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
    """The parts of a recipe that need no import: its docstring, its config class and its ``check``.

    ``config_class`` has the same fields as the recipe's own class, but is another class.
    """

    def __init__(self, source: _RecipeSource, annotation: ast.expr) -> None:
        self.path = path = source.path
        self.doc = ast.get_docstring(source.tree) or ""
        self._tree = source.tree
        #: The statements that have run.
        self._ran: set[ast.stmt] = set()
        self._module = ModuleType(f"{source.module} (outline)")
        self._module.__dict__.update(__file__=str(path), __package__=source.package)
        # Dataclasses and typing look there for the names in a class's annotations.
        sys.modules[self._module.__name__] = self._module
        self._run(_names_in([annotation]))
        code = compile(ast.Expression(annotation), str(path), "eval", dont_inherit=True)
        self.config_class: type[Any] = eval(code, self._module.__dict__)

    def check(self, loaded: LoadedConfig[Any], num_hosts: int, procs_per_host: int) -> None:
        """Call the recipe's ``check``, if it has one; it tells whether a config fits so many procs.

        Raises ``ConfigError`` if the config does not fit.
        """
        self._run({"check"})
        check = getattr(self._module, "check", None)
        if callable(check):
            with loaded.locating_errors():
                check(loaded.config, num_hosts, procs_per_host)

    def defines(self, name: str) -> bool:
        """Whether the recipe's own module has a function of that name."""
        return any(isinstance(x, _FUNCTIONS) and x.name == name for x in self._tree.body)

    def forget(self) -> None:
        """Remove the outline from ``sys.modules``, before other code uses it as the recipe."""
        sys.modules.pop(self._module.__name__, None)

    def _run(self, names: set[str]) -> None:
        statements = _statements_for(self._tree, names)
        new = [x for x in statements if x not in self._ran or _is_future(x)]
        self._ran.update(new)
        exec(_compiled(new, self.path), self._module.__dict__)


def outline_of(wanted: str) -> Outline | None:
    """Return the outline of the recipe that ``wanted`` names (a built-in recipe, a file, a module,
    or ``module:name``); ``None`` if its source does not show it.
    """
    source = _source_of(wanted)
    if source is None:
        return None
    try:
        annotation = _annotation(source.tree, wanted.partition(":")[2] or "run")
        outline = Outline(source, annotation) if annotation else None
    except Exception:
        return None
    return outline if outline and is_config(outline.config_class) else None


def preload_of(wanted: str) -> tuple[str, ...]:
    """Return the modules to import before the recipe's procs start: its ``PRELOAD``, if any."""
    return words_of(wanted, "PRELOAD")


def words_of(wanted: str, name: str) -> tuple[str, ...]:
    """Return the strings that the recipe's module assigns to ``name``; () if it has none."""
    source = _source_of(wanted)
    if source is None:
        return ()
    try:
        source = source.defining(name)
        names: dict[str, Any] = {"__file__": str(source.path), "__package__": source.package}
        needed = _statements_for(source.tree, {name}, in_strings=False)
        exec(_compiled(needed, source.path), names)
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
        """Return the source of the file from which this source imports ``name``, if that is a file
        beside it; else this source.
        """
        for statement in self.tree.body:
            if not (isinstance(statement, ast.ImportFrom) and statement.level == 1):
                continue
            parts = statement.module
            if parts and name in [alias.asname or alias.name for alias in statement.names]:
                path = self.path.parent.joinpath(*parts.split(".")).with_suffix(".py")
                module = f"{self.package}.{parts}"
                return _RecipeSource(ast.parse(path.read_bytes()), path, module)
        return self


def _source_of(wanted: str) -> _RecipeSource | None:
    name = wanted.partition(":")[0]
    built_in = built_in_recipes()
    path: Path | None
    is_folder = name not in built_in and is_package(Path(name))
    if Path(name).suffix == ".py" or is_folder:
        path, module = Path(name, "__init__.py" if is_folder else ""), Path(name).stem
        imported = source_of(module)
        if imported is not None and not (path.exists() and path.samefile(imported)):
            return None  # An import would give another module of that name.
    else:
        module = built_in.get(name, name)
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
    """Return the statements that bind or change ``names``, and the statements that those need, in
    the order of the module.
    """
    bound = {statement: _bound_by(statement) for statement in tree.body}
    needed: set[ast.stmt] = set()
    while new := {x for x in bound if x not in needed and bound[x] & names}:
        needed |= new
        names |= _names_in(new, in_strings=in_strings)
    return [statement for statement in tree.body if statement in needed or _is_future(statement)]


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds, and the names whose objects it changes
    by assigning to an attribute or item.
    """
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
    names: set[str] = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif in_strings and isinstance(node, ast.Constant) and str(node.value).isidentifier():
                names.add(str(node.value))
    return names
