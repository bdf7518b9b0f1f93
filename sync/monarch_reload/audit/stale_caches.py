"""`lru_cache`s whose results may come from old code: a function that they call was edited.

A cache is cleared when its own function is edited. The cache of a function that calls the edited
function is not cleared, because it may contain a loaded model.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from monarch_reload.kinds import is_a, own_names
from monarch_reload.source.codes import inner_codes
from monarch_reload.undo_log import contents_of

CACHE: Any = type(functools.lru_cache(lambda: None))
_MOST_CALLED = 2_000


def stale_caches(caches: Iterable[Any], patched: Collection[int]) -> Iterator[tuple[Any, str]]:
    """Yield (cache, name) for each cache with entries whose function calls an edited function,
    directly or through others; the name is that of the edited function.

    ``patched`` are the ids of edited functions. Calls are found by the names that code mentions:
    globals, and attributes of modules and classes.
    """
    for cache in caches if patched else ():
        function = cache.__wrapped__
        if type(function) is FunctionType and cache.cache_info().currsize:
            name = _edited_below(function, patched)
            if name:
                yield cache, name


def _edited_below(function: FunctionType, patched: Collection[int]) -> str:
    pending, seen = [function], {id(function)}
    while pending and len(seen) < _MOST_CALLED:
        for called in _called_by(pending.pop()):
            if id(called) in patched:
                return f"{called.__module__}.{called.__qualname__}"
            if id(called) not in seen:
                seen.add(id(called))
                pending.append(called)
    return ""


def _called_by(function: FunctionType) -> Iterator[FunctionType]:
    codes: list[CodeType] = [function.__code__, *inner_codes(function.__code__)]
    names = {name for code in codes for name in code.co_names}
    pending = [function.__globals__[name] for name in names if name in function.__globals__]
    pending += map(contents_of, function.__closure__ or ())
    for value in pending:
        if is_a(value, (type, ModuleType)):
            attributes: Any = vars(value) if is_a(value, type) else own_names(value)
            called = {name: attributes[name] for name in names if name in attributes}
            if is_a(value, type):
                called |= {name: attributes[name] for name in _MAKING if name in attributes}
            yield from filter(None, map(_function_of, called.values()))
        elif (target := _function_of(value)) is not None:
            yield target


_MAKING = ("__new__", "__init__", "__post_init__", "__call__")


def _function_of(value: Any) -> FunctionType | None:
    if is_a(value, (staticmethod, classmethod)):
        value = value.__func__
    if type(value) is CACHE:
        value = value.__wrapped__
    return value if type(value) is FunctionType else None
