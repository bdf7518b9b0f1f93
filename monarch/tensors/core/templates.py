"""Templates of calls: a call without its tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from monarch.tensors.core.keys import explain
from monarch.tensors.core.metas import Meta

FRESH = 0
VIEW_OF_INPUT = 1
INPUT_ITSELF = 2
VIEW_OF_RESULT = 3


class Result(NamedTuple):
    """One tensor of a call's results. ``of`` is the index of the input or result that it views."""

    kind: int
    meta: Meta | None
    of: int = 0


def _only(results: list[Any]) -> Any:
    return results[0] if results else None


class Template(msgspec.Struct, eq=False):
    """A call that workers know by ``number``."""

    name: str
    results: Sequence[Result]
    num_in: int
    #: The positions of the inputs that the call writes to.
    mutates: tuple[int, ...] = ()
    #: Makes the call's result from the resulting tensors.
    rebuild: Callable[[list[Any]], Any] = _only
    #: Makes the handle of the only result, if that is a fresh tensor, as of most operations.
    single: Callable[[], Any] | None = None
    #: Whether the caller gets the only result itself, and not a container of it.
    is_alone: bool = False
    #: Objects that its key compares by identity: they must live as long as the template.
    held: object = None
    number: int = 0
    num_out: int = 0
    #: The kind of the first result, and the input that it views or is.
    single_kind: int = FRESH
    single_of: int = 0

    def __post_init__(self) -> None:
        self.results = tuple(self.results)
        self.num_out = sum(result.kind != INPUT_ITSELF for result in self.results)
        if self.results:
            self.single_kind, _, self.single_of = self.results[0]


class TemplateCache:
    """The templates in use, by key. The least recently used templates are dropped.

    It has two halves: a template that is found in the older half moves to the younger one. So the
    usual case, a template of the younger half, costs one look-up.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self.young: dict[Any, Template] = {}
        self._old: dict[Any, Template] = {}
        self.num_misses = 0
        #: Why calls were not found; ``None`` while nobody wants to know.
        self._explained: list[str] | None = None

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def older(self, key: Any) -> Template | None:
        """Return a template from the older half, or ``None`` if it has none for the key.

        The caller looks into ``young`` first.
        """
        template = self._old.pop(key, None)
        if template is not None:
            self.young[key] = template
        return template

    def put(self, key: Any, template: Template) -> list[Template]:
        """Add a template; return the templates that were dropped for it."""
        self.num_misses += 1
        if self._explained is not None:
            same = [k for k in (*self.young, *self._old) if k[0] is key[0]]
            self._explained.append(f"{template.name}: {explain(key, same)}")
        self.young[key] = template
        if len(self.young) <= self._half:
            return []
        dropped = list(self._old.values())
        self._old = dict(self.young)
        self.young.clear()
        return dropped

    def explain_from_now(self) -> None:
        self._explained = []

    def explained(self) -> list[str]:
        """Return why each call since ``explain_from_now`` missed the cache, and stop collecting."""
        reasons, self._explained = self._explained or [], None
        return reasons
