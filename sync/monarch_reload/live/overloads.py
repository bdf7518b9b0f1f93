"""`typing.get_overloads`: keep the overloads of an edited module as in its source, in its order.

`typing` stores overloads by their line. So edits would leave old ones behind, and replace others.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from monarch_reload.live.closures import Edit
from monarch_reload.source.alignment import Alignment, align
from monarch_reload.source.spelling import dotted
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import Action

_ByLine = dict[int, Any]
_Registry = dict[str, dict[str, _ByLine]]  # by module and qualified name


def _registries() -> list[_Registry]:
    # That of `typing` came with Python 3.11; until then, `typing_extensions` has one.
    modules = (sys.modules.get(name) for name in ("typing", "typing_extensions"))
    registries = [getattr(module, "_overload_registry", None) for module in modules]
    return list({id(r): r for r in registries if isinstance(r, dict)}.values())


class Overloads:
    """The overloads that the trial of some modules registers."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], dict[str, _ByLine]] = {}  # by registry and module

    @contextlib.contextmanager
    def held_back(self, modules: Collection[str]) -> Iterator[None]:
        """In this block, collect the overloads that ``modules`` register; at its end, remove them
        from ``typing``'s registry and keep them for the commit."""
        pairs = [(registry, name) for registry in _registries() for name in modules]
        before = [(registry, name, _copied(registry, name)) for registry, name in pairs]
        try:
            yield
        finally:
            for registry, name, content in before:
                current = registry.get(name, {})
                self._made[id(registry), name] = {
                    qualname: {
                        line: overload
                        for line, overload in by_line.items()
                        if content.get(qualname, {}).get(line) is not overload
                    }
                    for qualname, by_line in current.items()
                }
                _put(registry, name, content)

    def flips(self, edits: Mapping[str, Edit], live_of: Callable[[Any], Any]) -> Iterator[Action]:
        """Yield the changes that replace the old overloads by the new ones at the commit. ``edits``
        are by module name."""
        for registry in _registries():
            for name, edit in edits.items():
                staged = self._made.get((id(registry), name), {})
                registered = _copied(registry, name)
                if any(registered.values()) or any(staged.values()):
                    after = _after(registered, staged, edit, live_of)
                    yield Action(partial(_change, registry, name, registered, after))


def _copied(registry: _Registry, module: str) -> dict[str, _ByLine]:
    return {qualname: dict(by_line) for qualname, by_line in registry.get(module, {}).items()}


def _put(registry: _Registry, module: str, content: Mapping[str, _ByLine]) -> None:
    if content or module in registry:
        by_qualname = registry[module]  # a defaultdict makes one
        by_qualname.clear()
        by_qualname.update({qualname: dict(by_line) for qualname, by_line in content.items()})


def _change(
    registry: _Registry, module: str, before: dict[str, _ByLine], after: dict[str, _ByLine]
) -> Callable[[], None]:
    _put(registry, module, after)
    return lambda: _put(registry, module, before)


def _after(
    registered: Mapping[str, _ByLine],
    staged: Mapping[str, _ByLine],
    edit: Edit,
    live_of: Callable[[Any], Any],
) -> dict[str, _ByLine]:
    lines = dict(_lines(edit.old, edit.new, edit.alignment))
    overloads: dict[str, _ByLine] = {}
    for qualname in {**registered, **staged}:
        by_line = registered.get(qualname, {})
        kept = by_line  # of a function that registers anew each time
        if "<locals>" not in qualname:
            kept = {lines[line]: overload for line, overload in by_line.items() if line in lines}
        fresh = {line: live_of(overload) for line, overload in staged.get(qualname, {}).items()}
        if kept or fresh:
            overloads[qualname] = dict(sorted({**kept, **fresh}.items()))
    return overloads


def _lines(
    old: Sequence[Statement], new: Sequence[Statement], alignment: Alignment
) -> Iterator[tuple[int, int]]:
    """Yield (old line, new line) of each overload that both the old and the new source have."""
    for index, statement in enumerate(new):
        origin = alignment.source_of(index)
        if origin is not None and statement.is_function and _is_overload(statement):
            yield old[origin].first, statement.first
        elif origin is not None and statement.is_class and old[origin].is_class:
            before, after = old[origin].body, statement.body
            yield from _lines(before, after, align(before, after))


def _is_overload(statement: Statement) -> bool:
    names = (dotted(decorator) or "" for decorator in getattr(statement.node, "decorator_list", ()))
    return any("overload" in name for name in names)
