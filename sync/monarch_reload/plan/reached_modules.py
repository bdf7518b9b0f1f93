"""The loaded modules that import a changed one, directly or by way of others."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator

from monarch_reload.plan.graph import absolute_name, package_of
from monarch_reload.source.source import ModuleSource, RunningSources

# Imports of names that are only known when they are run.
_COMPUTED = re.compile(
    rb"import_module\s*\(|__import__\s*\(|exec_module\s*\(|run_(?:path|module)\("
)


def reached_modules(
    changed: Iterable[str], folders: Collection[str], sources: RunningSources
) -> set[str]:
    """Return `changed`, and the names of all loaded modules that import one of these, directly or
    through other modules.

    `changed` are names of modules, loaded or not. `folders` contain their files: a module in these
    folders, or in a folder above, may import any of them if it imports by computed names.
    """
    reached = set(changed)
    rest = {name: source for name, source in sources.running() if name not in reached}
    latest = reached | {n for n, source in rest.items() if _may_import_any_of(source, folders)}
    imports: dict[str, Collection[str] | None] = {}
    while latest:
        reached |= latest
        last_parts = [re.escape(name.rpartition(".")[2].encode()) for name in latest]
        mention = re.compile(b"|".join([*last_parts, rb"import \*"]))
        importers = set()
        for name, source in rest.items():
            if name in reached:
                continue
            if not latest.isdisjoint(_above(name)):  # A module's packages are imported before it.
                importers.add(name)
            elif mention.search(source.text):
                if name not in imports:
                    imports[name] = _imports(name, source)
                if _takes(imports[name], latest):
                    importers.add(name)
        latest = importers
    return reached


def importable_as(path: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield the names by which a file can be imported, loaded or not; `folders` is `sys.path`."""
    for folder in folders:
        top = os.path.join(os.path.realpath(folder or os.getcwd()), "")
        if path.startswith(top):
            name = path[len(top) :].removesuffix(".py").replace(os.sep, ".")
            yield name.removesuffix(".__init__")


def _takes(imports: Collection[str] | None, names: Collection[str]) -> bool:
    if imports is None:
        return True
    return any(name in imports or f"{name.rpartition('.')[0]}.*" in imports for name in names)


def _imports(name: str, source: ModuleSource) -> Collection[str] | None:
    """Return the names of the modules that the module's imports mention, and of the packages above
    them. None if its source does not parse.

    Imports in functions count as well: the functions may be called during an import of the module.
    """
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError):
        return None
    package = package_of(name, source.path)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute_name(package, node.module, node.level)
            taken = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        else:
            continue
        for imported in taken:
            names.add(imported)
            names.update(_above(imported))
    return names


def _may_import_any_of(source: ModuleSource, folders: Collection[str]) -> bool:
    if not _COMPUTED.search(source.text):
        return False
    above = os.path.join(os.path.realpath(os.path.dirname(source.path)), "")
    return any(os.path.join(folder, "").startswith(above) for folder in folders)


def _above(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
