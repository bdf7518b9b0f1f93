"""Functions that are not bound to their names: decorators have put them into registries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any

from monarch_reload.live.all_objects import objects_of
from monarch_reload.undo_log import contents_of

Place = tuple[str, int]  # the name of a definition, and its first line


class Functions:
    """A set of functions. They can be looked up by the place of their definition, and by a function
    that they close over.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._all = [thing for thing in things if type(thing) is FunctionType]

    @classmethod
    def living(cls) -> Functions:
        """Return all functions of the process; this looks at every object that the collector
        knows."""
        return cls(objects_of({FunctionType}))

    def in_file(self, path: str) -> Iterator[FunctionType]:
        return (function for function in self._all if function.__code__.co_filename == path)

    def at_top_level(self, namespace: Mapping[str, Any]) -> Mapping[Place, list[FunctionType]]:
        """Return the functions defined at the top level of the module with these globals, by
        place."""
        functions: defaultdict[Place, list[FunctionType]] = defaultdict(list)
        for function in self._all:
            code = function.__code__
            defines = function.__qualname__ == code.co_name and "__wrapped__" not in vars(function)
            if function.__globals__ is namespace and defines:
                functions[code.co_name, code.co_firstlineno].append(function)
        return functions

    def wrappers_of(self, function: FunctionType) -> list[FunctionType]:
        """Return the functions that close over `function`."""
        return self._by_contents.get(id(function), [])

    @cached_property
    def _by_contents(self) -> Mapping[int, list[FunctionType]]:
        wrappers: defaultdict[int, list[FunctionType]] = defaultdict(list)
        for function in self._all:
            for cell in function.__closure__ or ():
                contents = contents_of(cell)
                if type(contents) is FunctionType:
                    wrappers[id(contents)].append(function)
        return wrappers
