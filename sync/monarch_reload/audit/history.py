"""The code that modules ran before, by what it was called then."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from types import CodeType
from typing import Any

from monarch_reload.audit.graphs import OlderGraphs
from monarch_reload.audit.literal_defaults import literal_defaults
from monarch_reload.live.patch import same_behaviour
from monarch_reload.source.codes import Codes
from monarch_reload.source.source import ModuleSource, RunningSources

_MOST_VERSIONS = 24


def worker_processes() -> list[Any]:
    """What this process has started by `multiprocessing`, and lives: pools, workers of loaders."""
    module: Any = sys.modules.get("multiprocessing.process")
    return [
        one
        for one in list(getattr(module, "_children", ()))
        if one._parent_pid == os.getpid() and one.is_alive()
    ]


class PastVersion:
    """A text that a module ran. ``label`` says which one, for people: ``generation 4``."""

    def __init__(self, source: ModuleSource, label: str) -> None:
        # Not the source: it has a syntax tree, of hundreds of objects a function.
        self._text = source.text
        self.path, self.label = source.path, label

    @cached_property
    def codes(self) -> Codes:
        """Compiled when it is first asked for."""
        try:
            return ModuleSource(self.path, self._text).codes
        except (SyntaxError, ValueError):
            return Codes({})

    @cached_property
    def defaults(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """See ``literal_defaults``."""
        return literal_defaults(self._text)

    def has(self, code: CodeType) -> bool:
        """Whether the file had this very code, inside of others included."""
        place = code.co_name, code.co_firstlineno
        if place in self.codes:
            return self.codes[place] == code
        return any(code in inner_codes(one) for one in self.codes.values())


def inner_codes(code: CodeType) -> list[CodeType]:
    """The codes of the functions and classes inside of one, at any depth."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return inner + [one for part in inner for one in inner_codes(part)]


class PastCode:
    """All reloaded modules of a process, with their earlier sources; newest last.

    ``removed`` are modules whose file is gone, with the source that they run.
    """

    def __init__(self) -> None:
        self._past: dict[str, deque[PastVersion]] = {}
        self.older_workers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.older_graphs = OlderGraphs()
        self.removed: dict[str, ModuleSource] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._past) | frozenset(self.removed)

    def replaced(self, name: str, source: ModuleSource, label: str) -> None:
        """Record that a module no longer runs this source."""
        self.older_workers.update(worker_processes())
        self.older_graphs.note(name, source.text, source.path, label)
        versions = self._past.setdefault(name, deque(maxlen=_MOST_VERSIONS))
        versions.append(PastVersion(source, label))

    def past(self, name: str) -> list[PastVersion]:
        """The earlier versions of a module, newest first."""
        return list(reversed(self._past.get(name, ())))

    def version_of(self, name: str, code: CodeType) -> PastVersion | None:
        """The newest earlier version that has the code."""
        for version in self.past(name):
            if version.has(code):
                return version
        for version in self.past(name):
            alike = (one for place, one in version.codes.items() if place[0] == code.co_name)
            if any(same_behaviour(one, code) for one in alike):
                return version
        return None

    def now_on_disk(self, sources: RunningSources, texts: Mapping[str, bytes | None]) -> None:
        """Note of which modules the file has gone, or is there again; None is for a deleted one."""
        for path, text in texts.items():
            for name in sources.names_at(path):
                if text is None:
                    self.removed[name] = sources[name]
                else:
                    self.removed.pop(name, None)

    def undone(self, name: str, source: ModuleSource) -> None:
        """Note that a module runs what it ran before: this source was taken back."""
        if self._past.get(name):
            self._past[name].pop()
        self.replaced(name, source, "the push that was taken back")
