"""How workers find a function: by its path where they can import it, by its code where not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from monarch.tensors.worker.definitions import resolve
from monarch.wire.pickler import dumps

function_resolvers: list[Callable[[Any], Any]] = []
"""Asked about each function that is given to ``remote``, the last one first: what one returns, a
path, another function, or what ``resolve()`` gives a worker the function of, is taken in its place;
``None`` is no opinion."""


class ResolvableFunctionFromPath(NamedTuple):
    """The function that workers find at ``path``, as a resolver may return it."""

    path: str

    def resolve(self) -> Any:
        """The function. Raises ``ImportError`` or ``AttributeError`` where there is none."""
        return resolve(("path", self.path))


class _Resolving:
    """The function that an object with ``resolve()`` gives in the process that runs it."""

    def __init__(self, resolvable: Any) -> None:
        self._resolvable = resolvable
        self.__qualname__ = repr(resolvable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolvable.resolve()(*args, **kwargs)


class RemoteFunction:
    """A function, or the path of one, as workers are told of it."""

    def __init__(self, given: Any) -> None:
        for resolver in reversed(function_resolvers):
            found = resolver(given)
            if found is not None:
                given = found
                break
        if isinstance(given, ResolvableFunctionFromPath):
            given = given.path
        elif not callable(given) and callable(getattr(given, "resolve", None)):
            given = _Resolving(given)
        if not callable(given) and not isinstance(given, str):
            raise TypeError(
                "what runs on the workers is a function or a class, or the path of one "
                f"('package.module.name'), not {given!r}"
            )
        self.given = given
        self.path = given if isinstance(given, str) else _path_of(given)

    @property
    def name(self) -> str:
        return (
            self.given
            if isinstance(self.given, str)
            else getattr(self.given, "__qualname__", repr(self.given))
        )

    def version(self) -> tuple[Any, ...]:
        """A key that differs between this code and older code of the same name.

        A function that travels whole is pickled for it: the objects that it refers to may have
        changed.
        """
        if self.path is None:
            return (pickled_by_value(self.given),)
        return (self.path, self.code())

    def code(self) -> Any:
        """The code of the function now, which a reload changes; ``None`` where that is not known
        here."""
        return code_of(_loaded(self.given) if isinstance(self.given, str) else self.given)

    def where(self) -> tuple[str, Any]:
        """How a worker gets it; see ``worker.definitions.resolve``."""
        if self.path is not None:
            return ("path", self.path)
        return ("pickle", pickled_by_value(self.given))


class _CodeOf:
    """The code of a function, compared by identity: a reload changes it in place of the
    function."""

    __slots__ = ("_names", "code")

    def __init__(self, function: Any) -> None:
        self.code = function.__code__
        self._names = function.__globals__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _CodeOf) and other.code is self.code and other._names is self._names
        )

    def __hash__(self) -> int:
        return id(self.code)


def code_of(function: Any) -> _CodeOf | None:
    """A key that differs between functions, and between a function before and after a reload."""
    own = getattr(function, "remote_function", function)
    return _CodeOf(own) if isinstance(own, FunctionType) else None


def rule_version(rule: Any) -> Any:
    """A key that differs between rules for what comes out. A rule that is written where it is used
    is a new function each time, and the same rule."""
    if type(rule) is not FunctionType:
        return rule
    own = (rule.__closure__, rule.__defaults__, rule.__kwdefaults__)
    return (None if own == (None, None, None) else rule, _CodeOf(rule))


def _loaded(path: str) -> Any:
    """The object at a path, if its module has been imported here; a reload changes it."""
    name, _, attribute = path.rpartition(".")
    return getattr(sys.modules.get(name), attribute, None)


def _path_of(function: Any) -> str | None:
    """The path of a function, where another process finds the same there by importing."""
    name, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    module = sys.modules.get(name or "")
    if module is None or not qualname or name == "__main__" or _is_of_tests(module):
        return None
    if getattr(module, "__spec__", None) is None or "<" in qualname:
        return None
    # While the module is still being imported, as at a decorator, the name is not there yet.
    return f"{name}.{qualname}"


def _is_of_tests(module: ModuleType) -> bool:
    loader = getattr(module, "__loader__", None)
    return type(loader).__module__.startswith("_pytest")


def pickled_by_value(function: Any) -> bytes:
    """The pickled code of a function, also where its module could be imported here."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not _is_of_tests(module):
        return dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
