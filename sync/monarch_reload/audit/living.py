"""The objects of the process that an audit compares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
)
from typing import Any

from monarch_reload.audit.stale_caches import CACHE
from monarch_reload.live.all_objects import objects_of, with_subclasses

SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)
_LOOKED_AT = frozenset((FunctionType, *SUSPENDED, CACHE))


def functions_of(is_wanted: Callable[[str], bool]) -> list[FunctionType]:
    """Return all functions whose file satisfies ``is_wanted``."""
    return [f for f in objects_of({FunctionType}) if is_wanted(f.__code__.co_filename)]


class LivingCode:
    """Functions, classes and suspended frames that come from some files and modules."""

    def __init__(
        self, paths: Collection[str], modules: Collection[str], all_paths: Collection[str]
    ) -> None:
        """``paths`` are the files of the reloaded ``modules``, ``all_paths`` the files of all
        modules that the reloader can reload."""
        self._paths, self._modules = frozenset(paths), modules
        self._all_paths = all_paths
        self.functions: list[FunctionType] = []
        self.generated: list[FunctionType] = []
        """Functions without a file, made by code of one of the modules."""
        self.classes: list[type] = []
        self.suspended: list[Any] = []
        self.caches: list[Any] = []
        """Of results of functions that come from any file which is followed."""
        self.num_functions = self.num_classes = 0

    def take(self, pause: Callable[[], None]) -> None:
        """Find the functions, classes, caches and suspended frames. ``pause`` is called between
        slices of the work.

        A list of all objects is made and dropped again before the first pause. While it exists, it
        keeps alive what other threads free, such as a step's activations. Afterwards only objects
        that may be wanted are kept.
        """
        paths, modules, functions = self._paths, frozenset(self._modules), FunctionType
        candidates = [
            thing
            for thing in objects_of(_LOOKED_AT)
            if type(thing) is not functions
            or (path := thing.__code__.co_filename) in paths
            or path[:1] == "<"
        ]
        pause()
        for candidate in candidates:
            if type(candidate) is CACHE:
                if _path_of(candidate.__wrapped__) in self._all_paths:
                    self.caches.append(candidate)
            elif type(candidate) is not functions:
                if code_of(candidate).co_filename in paths:
                    self.suspended.append(candidate)
            elif candidate.__code__.co_filename in paths:
                self.functions.append(candidate)
            elif {candidate.__globals__.get("__name__"), candidate.__module__} & modules:
                self.generated.append(candidate)
        candidates.clear()
        pause()
        self.classes = [cls for cls in with_subclasses(object) if type_module(cls) in modules]
        self.num_functions, self.num_classes = len(self.functions), len(self.classes)

    def forget(self) -> None:
        """Drop all references to the objects found."""
        for held in (self.functions, self.generated, self.classes, self.caches):
            held.clear()


def _path_of(function: Any) -> str:
    return function.__code__.co_filename if type(function) is FunctionType else ""


def code_of(suspended: Any) -> Any:
    """Return the code of a generator or a coroutine."""
    for name in ("gi_code", "cr_code", "ag_code"):
        if hasattr(type(suspended), name):
            return getattr(suspended, name)
    raise TypeError(type(suspended))


def running_codes() -> set[CodeType]:
    """Return the code of every frame of every thread."""
    codes: set[CodeType] = set()
    pending: list[FrameType | None] = list(sys._current_frames().values())
    while pending:
        # No variable may refer to a frame: this call has one too, which would then refer to itself.
        codes.add(pending[-1].f_code)  # type: ignore[union-attr]
        pending.append(pending.pop().f_back)  # type: ignore[union-attr]
        if pending[-1] is None:
            pending.pop()
    return codes


def type_module(cls: type) -> object:
    """Return the ``__module__`` of a class, without asking its metaclass; None if it has none."""
    try:
        return type.__dict__["__module__"].__get__(cls)
    except AttributeError:
        return None  # made outside of a module, by `exec` or in C
