"""A module that gets another file: `m.py` becomes `m/__init__.py`, or the other way round, or goes
to another import folder."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from types import ModuleType

from monarch_reload.undo_log import MISSING, Attribute

_INIT = "__init__.py"


def other_shape(path: str) -> str:
    """Return the path of the same module as a package; for a package, as a single file."""
    folder, name = os.path.split(path)
    return f"{folder}.py" if name == _INIT else os.path.join(path.removesuffix(".py"), _INIT)


def other_places(name: str, path: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield the paths at which the import system would look for a module of this name if the file
    at ``path`` did not exist.
    """
    yield other_shape(path)
    if name == "__main__":
        return
    for folder in folders:
        base = os.path.join(folder, *name.split("."))
        yield from (os.path.join(base, _INIT), f"{base}.py")


def reshaped(module: ModuleType, path: str) -> Iterator[Attribute]:
    """Yield the changes that make a module belong to the file ``path``: they set ``__file__``,
    ``__path__``, ``__spec__`` and the attributes beside them.
    """
    spec = importlib.util.spec_from_file_location(module.__name__, path)
    assert spec is not None
    folders = spec.submodule_search_locations
    yield Attribute(module, "__spec__", spec)
    yield Attribute(module, "__loader__", spec.loader)
    yield Attribute(module, "__file__", path)
    yield Attribute(module, "__package__", spec.parent)
    yield Attribute(module, "__path__", MISSING if folders is None else folders)
