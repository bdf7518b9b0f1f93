"""A recipe: finds its code, and reads what its module declares.

A recipe is a function ``run(config, procs, record)``, in a module of its own: a file, or a folder
with an ``__init__.py``. The annotation of its second parameter tells the kind of mesh that it gets:
``ProcMesh``, spawned for it, or ``HostMesh``, to spawn its own. It may also be a class, which is
called with the config, and whose method ``run(procs, record)`` is called. Either may be ``async``.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from monarch.actor import HostMesh
from monarch.config_file import ConfigError, LoadedConfig
from monarch.config_file.types import is_config
from monarch.errors import JobError
from monarch.runs.recipe.catalog import built_in_recipes, is_package
from monarch.runs.record.record import Record

_EXTRAS = {"titan": "titan", "fault_tolerant": "ft"}  # what pip installs for them
_SHAPE = "`run(config: YourConfig, procs: ProcMesh, record: Record)`"


@dataclass(frozen=True)
class Recipe:
    """A recipe: ``name`` is the name of its runs; ``wanted`` is the text that the user gave."""

    name: str
    wanted: str
    module: ModuleType
    config_class: type[Any]
    takes_hosts: bool
    is_cooperative: bool
    _call: Callable[[Any, Any, Record], Any]

    def run(self, config: Any, mesh: Any, record: Record) -> Any:
        """Run the recipe to its end, and return its result."""
        outcome = self._call(config, mesh, record)
        if inspect.iscoroutine(outcome):
            return asyncio.run(outcome)
        return outcome

    @property
    def doc(self) -> str:
        """Return the docstring of the recipe; "" if it has none."""
        return inspect.getdoc(self.module) or ""

    @property
    def summary(self) -> str:
        """Return the first line of the docstring."""
        return self.doc.partition("\n")[0]

    def check(self, loaded: LoadedConfig[Any], num_hosts: int, procs_per_host: int) -> None:
        """Call the recipe's own ``check``, if it has one. Raises ``ConfigError`` if the config does
        not fit the procs.
        """
        check = self.function("check")
        if check is not None:
            with loaded.locating_errors():
                check(loaded.config, num_hosts, procs_per_host)

    @property
    def path(self) -> Path | None:
        """Return the file or folder of the recipe's source; ``None`` if it has none."""
        file = getattr(self.module, "__file__", None)
        if file is None:
            return None
        return Path(file).parent if hasattr(self.module, "__path__") else Path(file)

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the recipe's function ``name``, which a recipe need not have (``plan``, ``check``,
        ``prepare``); ``None`` if it has none.
        """
        function = getattr(self.module, name, None)
        return function if callable(function) else None

    @property
    def roles(self) -> dict[str, int]:
        """Return the default number of procs of each role, from the recipe's ``ROLES``."""
        return dict(getattr(self.module, "ROLES", {}))

    @property
    def preload(self) -> tuple[str, ...]:
        """Return the modules to import before the procs start, from the recipe's ``PRELOAD``."""
        return tuple(getattr(self.module, "PRELOAD", ()))


def find_recipe(wanted: str) -> Recipe:
    """Import and return the recipe that ``wanted`` names.

    ``wanted`` is a built-in recipe, a file, a folder, a module, or ``module:name``. Raises
    ``JobError`` if there is none, or if it has no function or class that is a recipe.
    """
    source, _, attribute = wanted.partition(":")
    module = _load_module(source)
    entry = getattr(module, attribute or "run", None)
    if entry is None and attribute:
        raise JobError(f"{source} has no {attribute!r}")
    if inspect.isclass(entry):
        name = attribute or source
        init = _parameter_types(entry.__init__)[1:]
        types = [*init, *_parameter_types(getattr(entry, "run", None))[1:]]
        is_recipe, call = len(init) == 1, _call_of_class(entry)
        shape = (
            "a class needs `__init__(self, config: YourConfig)` and "
            "`run(self, procs: ProcMesh, record: Record)`"
        )
    else:
        name = Path(source).stem.rpartition(".")[2]
        types = _parameter_types(entry)
        is_recipe, call = callable(entry), typing.cast(Callable[..., Any], entry)
        shape = f"it needs a function {_SHAPE}"
    if not is_recipe or len(types) < 3 or not is_config(types[0]):
        raise JobError(f"{wanted} is no recipe: {shape}")
    return Recipe(
        name=name,
        wanted=wanted,
        module=module,
        config_class=types[0],
        takes_hosts=types[1] is HostMesh,
        is_cooperative=types[2] is Record,
        _call=call,
    )


def _call_of_class(cls: type[Any]) -> Callable[..., Any]:
    return lambda config, mesh, record: cls(config).run(mesh, record)


def _parameter_types(function: Any) -> list[Any]:
    """Return the types of a function's positional parameters; [] if it is no function.

    The type of a parameter without an annotation is ``None``.
    """
    if not callable(function):
        return []
    hints = typing.get_type_hints(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter
    positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    return [hints.get(p.name) for p in parameters if p.kind in positional]


def _load_module(name: str) -> ModuleType:
    built_in = built_in_recipes()
    path = Path(name)
    if path.suffix == ".py" or (name not in built_in and is_package(path)):
        if not path.exists():
            raise ConfigError(f"there is no file {name}{_meant(name, _files_beside(path))}")
        path = path.resolve()
        sys.path.insert(0, str(path.parent))
        module = importlib.import_module(path.stem)
        source = path / "__init__.py" if path.is_dir() else path
        if not module.__file__ or not source.samefile(module.__file__):
            raise JobError(
                f"{name} has the name of a module of Python's or of a package, "
                f"{module.__file__ or 'which is built in'}: give it another"
            )
        return module
    try:
        return importlib.import_module(built_in.get(name, name))
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            extra = _EXTRAS.get(name, "train")
            raise JobError(
                f"the recipe {name} needs {error.name}, which is not installed here: "
                f"pip install 'monarch-loop[{extra}]'"
            ) from None
        whole = name.partition("-")[0]
        if whole in built_in:
            raise JobError(
                f"{name} is no recipe to run, but one to prepare: `monarch recipe prepare {name}` "
                f"makes a folder to `monarch run {whole}` in"
            ) from None
        raise ConfigError(
            f"there is no recipe {name!r}{_meant(name, built_in)} Built in: {', '.join(built_in)}; "
            "or give a Python file, a folder with an __init__.py, or a module"
        ) from None


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [*known], 1)
    return f". Did you mean {close[0]!r}?" if close else "."


def _files_beside(path: Path) -> list[str]:
    try:
        return [str(file) for file in path.parent.glob("*.py")]
    except OSError:
        return []
