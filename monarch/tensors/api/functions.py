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
"""Called with each function that is passed to ``remote``, the last resolver first, until a resolver
returns a replacement: a path, another function, or an object whose ``resolve()`` returns the
function at a worker. ``None`` means no replacement."""


class ResolvableFunctionFromPath(NamedTuple):
    """The path of a function, which workers import.

    An entry of ``function_resolvers`` may return it in place of a function.
    """

    path: str

    def resolve(self) -> Any:
        """Import the function and return it.

        Raises ``ImportError`` or ``AttributeError`` if there is no such function.
        """
        return resolve(("path", self.path))


class _Resolving:
    """A function that calls ``resolve()`` of an object at each call, and then calls the result."""

    def __init__(self, resolvable: Any) -> None:
        self._resolvable = resolvable
        self.__qualname__ = repr(resolvable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolvable.resolve()(*args, **kwargs)


class RemoteFunction:
    """A function, or a function's path, in the form that workers can load."""

    def __init__(self, function: Any) -> None:
        for resolver in reversed(function_resolvers):
            replacement = resolver(function)
            if replacement is not None:
                function = replacement
                break
        if isinstance(function, ResolvableFunctionFromPath):
            function = function.path
        elif not callable(function) and callable(getattr(function, "resolve", None)):
            function = _Resolving(function)
        if not callable(function) and not isinstance(function, str):
            raise TypeError(
                "what runs on the workers is a function or a class, or the path of one "
                f"('package.module.name'), not {function!r}"
            )
        #: The function, or its path.
        self.function = function
        #: The path by which workers import it; ``None`` if they get it by value.
        self.path = function if isinstance(function, str) else _path_of(function)

    @property
    def name(self) -> str:
        if isinstance(self.function, str):
            return self.function
        return getattr(self.function, "__qualname__", repr(self.function))

    def version(self) -> tuple[Any, ...]:
        """Return a key that differs between this code and older code of the same name.

        For a function that is sent by value, the key is its pickle, made anew at each call of this
        method: so the key also changes with the objects that the function refers to.
        """
        if self.path is None:
            return (_pickled_by_value(self.function),)
        return (self.path, self.code())

    def code(self) -> Any:
        """Return a key for the function's code, which a reload changes; ``None`` if it is not
        loaded here."""
        is_path = isinstance(self.function, str)
        return code_of(_loaded(self.function) if is_path else self.function)

    def where(self) -> tuple[str, Any]:
        """Return how a worker loads the function: ("path", path) or ("pickle", bytes)."""
        if self.path is not None:
            return ("path", self.path)
        return ("pickle", _pickled_by_value(self.function))


class _CodeOf:
    """The code of a function, compared by identity.

    A reload gives the function new code, and keeps the function.
    """

    def __init__(self, function: Any) -> None:
        self.code = function.__code__
        self._globals = function.__globals__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _CodeOf):
            return NotImplemented
        return other.code is self.code and other._globals is self._globals

    def __hash__(self) -> int:
        return id(self.code)


def code_of(function: Any) -> _CodeOf | None:
    """Return a key that changes with a function's code; ``None`` for other objects."""
    plain = getattr(function, "remote_function", function)
    return _CodeOf(plain) if isinstance(plain, FunctionType) else None


def rule_version(rule: Any) -> Any:
    """Return a key that differs between shape rules with different code.

    Two lambdas from the same line have equal keys, unless they have a closure or default values.
    """
    if type(rule) is not FunctionType:
        return rule
    has_values = rule.__closure__ or rule.__defaults__ or rule.__kwdefaults__
    return (rule if has_values else None, _CodeOf(rule))


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
    # The name is not looked up: in a decorator, the module does not have it yet.
    return f"{name}.{qualname}"


def _is_of_tests(module: ModuleType) -> bool:
    loader = getattr(module, "__loader__", None)
    return type(loader).__module__.startswith("_pytest")


def _pickled_by_value(function: Any) -> bytes:
    """Pickle a function with its code, even if workers could import its module."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not _is_of_tests(module):
        return dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
