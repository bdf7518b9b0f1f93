"""The loaded modules that an edit of another one may concern."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property

from monarch_reload.live.tables import holders
from monarch_reload.plan.edits import unedited
from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.plan.stars import Exports
from monarch_reload.source.source import RunningSources
from monarch_reload.source.spelling import root_of
from monarch_reload.source.statements import Statement


class Importers:
    """Finds the loaded modules that may import some names from a module.

    The text of such a module mentions the module and one of the names. Or one of its containers has
    an object that is bound to one of the names.
    """

    def __init__(self, sources: RunningSources, planned: Collection[str], exports: Exports) -> None:
        self._sources = sources
        self._planned = set(planned)
        self._exports = exports

    @cached_property
    def _holders(self) -> Mapping[tuple[str, str], set[str]]:
        return holders(self._sources.loaded())

    def __call__(self, module: str, names: Collection[str]) -> Iterator[ModuleEdit]:
        last = module.rpartition(".")[2].encode()
        taken_whole = _taken_whole(last)
        takes_any = "__getattr__" in names
        wanted = _mentions(names)
        handed = handed_over(self._sources[module].statements).intersection(names)
        holding = {holder for name in handed for holder in self._holders.get((module, name), ())}
        for name, loaded in self._sources.loaded():
            if name in self._planned:
                continue
            source = self._sources[name]
            text = source.text
            by_dots = b"from ." in text
            if by_dots:  # only a module in a package may name it by dots alone
                package = getattr(loaded, "__package__", None)
                by_dots = f"{package}.".startswith(f"{module}.")
            takes = (last in text or by_dots) and (
                takes_any or b"import *" in text or wanted(text) or taken_whole(text)
            )
            if takes or name in holding:
                self._planned.add(name)
                try:
                    yield unedited(name, loaded, source, self._exports)
                except (SyntaxError, ValueError):
                    continue  # already broken on disk when we first looked


def handed_over(statements: Iterable[Statement]) -> set[str]:
    """Return the names whose objects the module may have given to other code, which then need not
    mention the module. Decorators and base classes get such objects, and calls at the top level.
    """
    names: set[str] = set()
    for statement in statements:
        node = statement.node
        if statement.is_definition:
            receivers = getattr(node, "decorator_list", ()) or getattr(node, "bases", ())
            names |= statement.binds if receivers or getattr(node, "keywords", ()) else set()
        elif not statement.is_harmless:
            names |= {root_of(name) for name, _ in statement.names.eager}
    return names


def _mentions(names: Collection[str]) -> Callable[[bytes], object]:
    """Return a function that tells whether a text contains one of these names, as a whole word."""
    parts = [name.encode() for name in names]
    words = re.compile(
        rb"(?<![A-Za-z0-9_])(?:%b)(?![A-Za-z0-9_])" % b"|".join(map(re.escape, parts))
    )
    return lambda text: any(part in text for part in parts) and words.search(text)


def _taken_whole(last: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a text uses a module as a whole: `vars(m)`,
    `m.__dict__`. ``last`` is the last part of the module's name.
    """
    renamed = re.compile(rb"\b%b\s+as\s+(\w+)" % last)

    def is_taken(text: bytes) -> bool:
        names = b"|".join({last, *renamed.findall(text)})
        whole = rb"[(,=]\s*(?:%b)\s*[,)]|\b(?:%b)\.__dict__" % (names, names)
        return last in text and re.search(whole, text) is not None

    return is_taken
