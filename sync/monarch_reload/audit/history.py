"""The code of each version of a module: of the present one, and of those that ran before."""

from __future__ import annotations

import os
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import Any

from monarch_reload.audit.graphs import OlderGraphs
from monarch_reload.audit.literal_defaults import literal_defaults
from monarch_reload.live.patch import same_behaviour
from monarch_reload.source.codes import Codes, inner_codes
from monarch_reload.source.source import ModuleSource, RunningSources

_MOST_VERSIONS = 24


def worker_processes() -> list[Any]:
    """Return the live processes that this one has started by `multiprocessing`: pools, workers of
    loaders."""
    module: Any = sys.modules.get("multiprocessing.process")
    return [
        process
        for process in list(getattr(module, "_children", ()))
        if process._parent_pid == os.getpid() and process.is_alive()
    ]


class PastVersion:
    """An earlier text of a module. ``label`` names the version for people: ``generation 4``."""

    def __init__(self, source: ModuleSource, label: str) -> None:
        # Not the ModuleSource, whose syntax tree has hundreds of objects for each function.
        self._text = source.text
        self.path, self.label = source.path, label

    @cached_property
    def codes(self) -> Codes:
        """The code objects of the text, compiled at the first use; empty if it does not compile."""
        try:
            return ModuleSource(self.path, self._text).codes
        except (SyntaxError, ValueError):
            return Codes({})

    @cached_property
    def defaults(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """The defaults that the text writes out as values; see ``literal_defaults``."""
        return literal_defaults(self._text)

    def has(self, code: CodeType) -> bool:
        """Return whether the text has exactly this code object, also if it is nested in another
        one."""
        place = code.co_name, code.co_firstlineno
        if place in self.codes:
            return self.codes[place] == code
        return any(code in inner_codes(outer) for outer in self.codes.values())


class PastCode:
    """The earlier sources of all reloaded modules of a process; newest last.

    ``removed`` are modules whose file was deleted, with the source that they run.
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
        """Return the earlier versions of a module, newest first."""
        return list(reversed(self._past.get(name, ())))

    def version_of(self, name: str, code: CodeType) -> PastVersion | None:
        """Return the newest earlier version that has the code; None if none has it."""
        for version in self.past(name):
            if version.has(code):
                return version
        for version in self.past(name):
            alike = (
                past_code for place, past_code in version.codes.items() if place[0] == code.co_name
            )
            if any(same_behaviour(past_code, code) for past_code in alike):
                return version
        return None

    def now_on_disk(self, sources: RunningSources, texts: Mapping[str, bytes | None]) -> None:
        """Record which modules' files were deleted, and which exist again. ``texts`` has each
        file's text, None if it was deleted."""
        for path, text in texts.items():
            for name in sources.names_at(path):
                if text is None:
                    self.removed[name] = sources[name]
                else:
                    self.removed.pop(name, None)

    def undone(self, name: str, source: ModuleSource) -> None:
        """Record that a reload was undone, and the module runs its newest earlier version again.

        That version is removed from the earlier versions, and ``source``, which ran until now, is
        added in its place.
        """
        if self._past.get(name):
            self._past[name].pop()
        self.replaced(name, source, "the push that was taken back")


class FreshCodes:
    """The code objects of all functions and classes of one source, by name."""

    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[CodeType]]:
        return _by_name(self._source.codes.values())

    @cached_property
    def _compiled(self) -> Mapping[str, Sequence[CodeType]]:
        """All code objects of the source, by name, including those that share a name and a line.

        `ModuleSource.codes` leaves out code objects that share a name and a line, so the whole file
        is compiled here.
        """
        code = compile(self._source.text, self._source.path, "exec", dont_inherit=True)
        return _by_name([code])

    @cached_property
    def defaults(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """The defaults that the source writes out as values; see ``literal_defaults``."""
        return literal_defaults(self._source.text)

    def has(self, code: CodeType) -> bool:
        """Return whether a function of the source has exactly this code, line numbers included."""
        name = code.co_name
        return code in self._by_name.get(name, ()) or code in self._compiled.get(name, ())

    def has_behaviour(self, code: CodeType) -> bool:
        """Return whether a function in the source with this code's name behaves as this code does.
        The line numbers may differ.
        """
        return any(
            same_behaviour(candidate, code) for candidate in self._compiled.get(code.co_name, ())
        )

    def has_name(self, name: str) -> bool:
        """Return whether the source still has a function or class of this name. Always True for
        names such as ``<lambda>``."""
        return name.startswith("<") or name in self._compiled


def _by_name(codes: Iterable[CodeType]) -> Mapping[str, Sequence[CodeType]]:
    by_name: defaultdict[str, list[CodeType]] = defaultdict(list)
    seen: set[int] = set()
    for code in codes:
        for inner in (code, *inner_codes(code)):
            if id(inner) not in seen:
                seen.add(id(inner))
                by_name[inner.co_name].append(inner)
    return by_name
