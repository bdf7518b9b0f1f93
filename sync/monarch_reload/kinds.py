"""Looks at objects without running their code.

`isinstance` asks an object for its `__class__` as well. A lazy object would load itself. A proxy
would say that it is the function it wraps, and an edit would go to the proxy instead of that
function.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeGuard, TypeVar, overload

T = TypeVar("T")


@overload
def is_a(value: object, kind: type[T]) -> TypeGuard[T]: ...


@overload
def is_a(value: object, kind: tuple[type, ...]) -> bool: ...


def is_a(value: object, kind: Any) -> bool:
    """Return whether the type of a value is ``kind`` or a subclass of it, whatever the value's
    ``__class__`` says."""
    return issubclass(type(value), kind)


def own_names(holder: object) -> dict[str, Any]:
    """Return the attributes of a module or an instance; empty for a lazily loaded module."""
    try:
        held = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def definition_at(module: str, qualname: str) -> Any:
    """Return the object with the qualified name ``qualname`` in a loaded module; None if there is
    none. Names are looked up only in modules and classes, not in instances.
    """
    value: Any = sys.modules.get(module)
    names: Mapping[str, Any] = own_names(value)
    for name in qualname.split("."):
        value = names.get(name)
        names = vars(value) if is_a(value, type) else {}
    return value


def is_heap_type(cls: type) -> bool:
    """Return whether a class was made at run time, as class statements do; False for the static
    types of C."""
    return bool(cls.__flags__ & (1 << 9))


def is_waiting(module: ModuleType) -> bool:
    """Return whether a module is lazy: it loads itself when it is first used."""
    return type(module).__name__ == "_LazyModule" and type(module).__module__ == "importlib.util"


BY_VALUE = (tuple, str, int, float, bytes)
"""Instances of classes with these bases get their value when they are made."""
