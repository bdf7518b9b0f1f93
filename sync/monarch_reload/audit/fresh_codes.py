"""The code that a fresh import of a module gives, to compare live functions with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import Any

from monarch_reload.audit.history import inner_codes
from monarch_reload.audit.literal_defaults import literal_defaults
from monarch_reload.live.patch import same_behaviour
from monarch_reload.source.source import ModuleSource


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

        `ModuleSource.codes` leaves these out, so the whole file is compiled here.
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
        """Return whether a function of that name in the source does the same, perhaps on other
        lines."""
        return any(
            same_behaviour(candidate, code) for candidate in self._compiled.get(code.co_name, ())
        )

    def has_name(self, name: str) -> bool:
        """Return whether the source still has a function or class of this name. `<lambda>` is no
        name."""
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
