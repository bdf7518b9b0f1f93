"""The objects of the process, gone through in slices between which other threads run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import compress
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
)
from typing import Any

_SLICE = 8_000

SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)


def living(kinds: Collection[type], pause: Callable[[], None]) -> Iterator[Any]:
    """Yields each object of exactly one of these types once. ``pause`` lets others run.

    The list of all objects would keep what a step frees, so it gets shorter with each slice. Young
    objects come first: an object may get older meanwhile, never younger.
    """
    seen: set[int] = set()
    for generation in range(3):
        things = gc.get_objects(generation=generation)
        while things:
            part = things[-_SLICE:]
            del things[-_SLICE:]
            found = list(compress(part, map(kinds.__contains__, map(type, part))))
            del part
            for thing in found:
                if id(thing) not in seen:
                    seen.add(id(thing))
                    yield thing
            found.clear()
            thing = None
            pause()


def metaclasses() -> set[type]:
    """All of the process."""
    found: set[type] = set()
    pending: list[type] = [type]
    while pending:
        cls = pending.pop()
        if cls not in found:
            found.add(cls)
            pending += type.__subclasses__(cls)
    return found


class Snapshot:
    """Functions, classes and suspended frames that come from some files and modules."""

    def __init__(self, paths: Collection[str], modules: Collection[str]) -> None:
        self._paths, self._modules = paths, modules
        self.functions: list[FunctionType] = []
        self.generated: list[FunctionType] = []
        """Functions without a file, made by code of one of the modules."""
        self.classes: list[type] = []
        self.suspended: list[Any] = []

    def take(self, pause: Callable[[], None]) -> None:
        classes = metaclasses()
        kinds = {FunctionType, *SUSPENDED, *classes}
        for thing in living(kinds, pause):
            if type(thing) is FunctionType:
                self._add_function(thing)
            elif type(thing) in classes:
                if type_module(thing) in self._modules:
                    self.classes.append(thing)
            elif code_of(thing).co_filename in self._paths:
                self.suspended.append(thing)

    def _add_function(self, function: FunctionType) -> None:
        path = function.__code__.co_filename
        if path in self._paths:
            self.functions.append(function)
        elif path[:1] == "<":
            home = function.__globals__.get("__name__"), function.__module__
            if not self._modules.isdisjoint(home):  # type: ignore[attr-defined]
                self.generated.append(function)


def code_of(suspended: Any) -> Any:
    """The code of a generator or a coroutine."""
    for name in ("gi_code", "cr_code", "ag_code"):
        if hasattr(type(suspended), name):
            return getattr(suspended, name)
    raise TypeError(type(suspended))


def running_codes() -> set[CodeType]:
    """The code of every frame of every thread."""
    codes: set[CodeType] = set()
    pending: list[FrameType | None] = list(sys._current_frames().values())
    while pending:
        # No variable may keep a frame: one of these is our own, which would then hold itself.
        codes.add(pending[-1].f_code)  # type: ignore[union-attr]
        pending.append(pending.pop().f_back)  # type: ignore[union-attr]
        if pending[-1] is None:
            pending.pop()
    return codes


def type_module(cls: type) -> object:
    """`__module__` of a class, without asking its metaclass."""
    return type.__dict__["__module__"].__get__(cls)
