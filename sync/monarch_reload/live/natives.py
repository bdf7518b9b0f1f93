"""Native code that keeps a copy of a class's fields: no reload reaches into it.

A validator, a decoder or a schema compiled in C or Rust refers to the class that it was made for,
as does a metaclass that compiles the class statement. A native object made in a trial would refer
to the trial's class after the commit, and a live one would keep the old fields: it takes a new
process. Packages are not listed by name: such an object is recognised by its memory layout and by
the objects that it refers to.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Collection, Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from monarch_reload.kinds import is_heap_type

_WORD = object.__basicsize__ // 2
# Compiled graphs of torch are dropped at each commit, and its metaclasses keep nothing of a class.
# The base class of pybind11 does not show what its instances refer to.
_KNOWN = sys.stdlib_module_names | {"torch", "pybind11_builtins"}
_DEEPEST = 4


def why_its_metaclass_objects(live: type, staged: type) -> str | None:
    """Return why a class with a native metaclass cannot take a new class body; ``None`` if it
    can."""
    kind: type = type(live)
    native = next((base for base in kind.__mro__ if _compiles_classes(base)), None)
    if native is None:
        return None
    if kind.__module__ == "_ctypes":
        same = all(_same(live, staged, name) for name in _LAID_OUT)
    else:
        names = [n for n, part in vars(native).items() if isinstance(part, _OF_NATIVE_CODE)]
        same = all(_same(live, staged, name) for name in names)
        same = same and _special(live) == _special(staged)
    return None if same else f"{native.__module__}.{native.__qualname__} compiles the class"


_LAID_OUT = ("_fields_", "_pack_", "_anonymous_", "_type_", "_length_", "_flags_", "_restype_")
_OF_NATIVE_CODE = (GetSetDescriptorType, MemberDescriptorType)


def is_laid_out(cls: type, name: str) -> bool:
    """Return whether an attribute of a ctypes class can be assigned only once."""
    return type(cls).__module__ == "_ctypes" and name in _LAID_OUT


def _compiles_classes(metaclass: type) -> bool:
    if metaclass is type or not issubclass(metaclass, type):
        return False
    return metaclass.__module__ == "_ctypes" or _adds_storage(metaclass)


def _same(live: type, staged: type, name: str) -> bool:
    try:
        return bool(getattr(live, name, None) == getattr(staged, name, None))
    except Exception:
        return False


def _special(cls: type) -> set[str]:
    made_by_use = {"__doc__", "__annotations_cache__", "__static_attributes__", "__firstlineno__"}
    return {name for name in vars(cls) if name.startswith("__")} - made_by_use


def kept_natively(pairs: Collection[tuple[type, type]]) -> Iterator[tuple[type, str]]:
    """Yield (live class, name of the native type) for each class that native code keeps using, so
    that an edit of the class would not reach that code.

    `pairs` are (staged class, live class that takes its body).
    """
    live_of = {id(cls): live for staged, live in pairs for cls in (staged, live)}
    replaced = {id(vars(live).get(name)) for staged, live in pairs for name in vars(staged)}
    for holder, cls in native_holders([cls for pair in pairs for cls in pair]):
        if id(holder) not in live_of and id(holder) not in replaced:
            kind = type(holder)
            yield live_of[id(cls)], f"{kind.__module__}.{kind.__qualname__}"


def native_holders(classes: Collection[type]) -> Iterator[tuple[Any, type]]:
    """Yield (native object, class) for native objects that refer to one of the ``classes``,
    directly or through another native object.
    """
    native_objects: dict[int, tuple[Any, type]] = {}
    wanted: Mapping[int, type] = {id(cls): cls for cls in classes}
    are_native: dict[type, bool] = {}

    def is_of_extension(thing: Any) -> bool:
        kind = type(thing)
        if kind not in are_native:
            are_native[kind] = is_native(kind)
        return are_native[kind]

    pending: list[Any] = list(classes)
    for _ in range(_DEEPEST):
        holders = [referrer for referrer in gc.get_referrers(*pending) if is_of_extension(referrer)]
        fresh = [referrer for referrer in holders if id(referrer) not in native_objects]
        if not fresh:
            break
        for holder in fresh:
            # Without its own class, to which every instance refers.
            parts = [id(part) for part in gc.get_referents(holder) if part is not type(holder)]
            direct = [wanted[part] for part in parts if part in wanted]
            inner = [native_objects[part][1] for part in parts if part in native_objects]
            if direct or inner:
                native_objects[id(holder)] = holder, (*direct, *inner)[0]
        pending = fresh
    yield from native_objects.values()


def is_native(kind: type) -> bool:
    """Return whether instances of a type have a part that only code of an extension can read."""
    return any(_adds_storage(base) for base in type.mro(kind)[:-1]) if kind is not type else False


def _adds_storage(kind: type) -> bool:
    """Return whether a type of an extension adds to the memory layout of its base.

    A class statement adds nothing but a dict, a list of weak references, and slots.
    """
    base = kind.__base__
    if base is None or _is_known(kind):
        return False
    size = kind.__basicsize__ - base.__basicsize__
    for offset in ("__dictoffset__", "__weakrefoffset__"):
        if getattr(kind, offset) and not getattr(base, offset):
            size -= _WORD
    if "__slots__" in vars(kind):
        size -= _WORD * sum(type(v) is MemberDescriptorType for v in vars(kind).values())
    return size > 0


def _is_known(kind: type) -> bool:
    module: Any = kind.__module__
    if not isinstance(module, str):
        return False
    if module == "builtins":  # where an extension may say that its own types are, too
        return not is_heap_type(kind) or getattr(builtins, kind.__name__, None) is kind
    return module.partition(".")[0] in _KNOWN
