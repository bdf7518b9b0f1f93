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
        """Import the function and return it.

        Raises ``ImportError`` or ``AttributeError`` if there is no such function.
        """
        return resolve(("path", self.path))


class _Resolving:
    """Calls the function that an object's ``resolve()`` returns in the process that runs it."""

    def __init__(self, resolvable: Any) -> None:
        self._resolvable = resolvable
        self.__qualname__ = repr(resolvable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolvable.resolve()(*args, **kwargs)


class RemoteFunction:
    """A function, or a function's path, in the form that workers can load."""

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
        """Return a key that differs between this code and older code of the same name.

        A function that is sent by value is pickled for the key: objects that it refers to may have
        changed.
        """
        if self.path is None:
            return (pickled_by_value(self.given),)
        return (self.path, self.code())

    def code(self) -> Any:
        """Return a key for the function's code, which a reload changes; ``None`` if it is not
        loaded here."""
        return code_of(_loaded(self.given) if isinstance(self.given, str) else self.given)

    def where(self) -> tuple[str, Any]:
        """Return how a worker loads the function: ("path", path) or ("pickle", bytes)."""
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
    """Return a key that changes with the function's code, also after a reload; ``None`` for other
    objects."""
    own = getattr(function, "remote_function", function)
    return _CodeOf(own) if isinstance(own, FunctionType) else None


def rule_version(rule: Any) -> Any:
    """Return a key that differs between shape rules.

    A lambda that is written at the call is a new function each time, and still the same rule.
    """
    if type(rule) is not FunctionType:
        return rule
    own = (rule.__closure__, rule.__defaults__, rule.__kwdefaults__)
    return (None if own == (None, None, None) else rule, _CodeOf(rule))


def _loaded(path: str) -> Any:
    """Return the object at a path; ``None`` if its module has not been imported in this process."""
    name, _, attribute = path.rpartition(".")
    return getattr(sys.modules.get(name), attribute, None)


def _path_of(function: Any) -> str | None:
    """Return the path by which another process can import the function; ``None`` if there is
    none."""
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
    """Pickle a function with its code, also if its module could be imported."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not _is_of_tests(module):
        return dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
