"""cloudpickle, extended to keep the file names of code, and to find classes of extension modules.

Since 3.1.3 cloudpickle calls every file ``<dynamic-code>``. Tracebacks, the debugger and reload
find source lines by the file name, so it is kept here.

A class of an extension module may name a module that does not have it (pyo3 says ``builtins``).
cloudpickle takes it for a class that was made here, and sends a copy without its native methods.
Here it is sent as the module and the name under which it can be imported.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as rules

# Its place among the arguments of types.CodeType, in every Python since 3.8.
_CO_FILENAME = 10

_reduce_without_file = cloudpickle.Pickler.dispatch_table[types.CodeType]


def _reduce_code(code: types.CodeType) -> tuple[Any, tuple[Any, ...]]:
    made_by, arguments = _reduce_without_file(code)
    # A string of its own, as for the other names: equal code has equal pickles, interned or not.
    name = "".join(code.co_filename)
    return made_by, (*arguments[:_CO_FILENAME], name, *arguments[_CO_FILENAME + 1 :])


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles like cloudpickle, but code keeps its ``co_filename``."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduce_code})

    def reducer_override(self, value: Any) -> Any:
        address = place_of_stray(value) if issubclass(type(value), type) else None
        return super().reducer_override(value) if address is None else (_class_at, address)


def dumps(value: Any) -> bytes:
    """Return ``value`` as a pickle of protocol 5, with all data in it."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def place_of_stray(cls: type) -> tuple[str, str] | None:
    """For a class whose ``__module__`` is wrong, return a module and a name at which it can be
    imported.

    None for other classes, and if there is no such module. Raises PicklingError for a class of an
    extension that is in no module: no other process could make it.
    """
    if cls in _strays:
        return _strays[cls]
    if cls.__module__ == "__main__" or rules._should_pickle_by_reference(cls):
        return None
    address = min(_places_of(cls), key=_by_simplicity, default=None)
    if address is None and _is_of_extension(cls):
        raise pickle.PicklingError(
            f"{cls.__qualname__} cannot be sent: an extension defines it, says that it is in "
            f"{cls.__module__!r}, and no imported module has it"
        )
    if address is not None:
        _strays[cls] = address
    return address


_strays: weakref.WeakKeyDictionary[type, tuple[str, str]] = weakref.WeakKeyDictionary()


def _class_at(module: str, name: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _places_of(cls: type) -> Iterator[tuple[str, str]]:
    for name, module in sys.modules.copy().items():
        # By its type, and past its `__getattr__`: a lazy one would load itself.
        if name in ("__main__", "__mp_main__") or not issubclass(type(module), types.ModuleType):
            continue
        if rules._is_registered_pickle_by_value(module):
            continue
        names = object.__getattribute__(module, "__dict__").copy()
        if names.get("__spec__") is None:
            continue  # nothing that another process could import
        for key, value in names.items():
            if value is cls:
                yield name, key
            elif (
                issubclass(type(value), type)
                and type.__dict__["__dict__"].__get__(value).get(cls.__name__) is cls
            ):
                yield name, f"{key}.{cls.__name__}"


def _by_simplicity(address: tuple[str, str]) -> tuple[int, int, str]:
    """Return a sort key that puts public and short names first."""
    whole = ".".join(address)
    return sum(part.startswith("_") for part in whole.split(".")), len(whole), whole


def _is_of_extension(cls: type) -> bool:
    """Return whether native code defines the class: a class statement makes no native methods."""
    for name, value in vars(cls).items():
        if isinstance(value, _NATIVE):
            if value.__objclass__ is cls and name not in ("__dict__", "__weakref__"):
                return True
        elif isinstance(value, types.BuiltinFunctionType) and value.__self__ is cls:
            return True
    return False


_NATIVE = (
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
