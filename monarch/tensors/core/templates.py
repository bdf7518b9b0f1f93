"""Templates of calls: all of a call but its tensors and its numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Template:
    """A call that workers know by ``number``.

    ``rebuild`` makes the call's result from the resulting tensors. ``mutates`` are the positions of
    the inputs that it writes to. ``single`` makes the handle of the only result, if that is a fresh
    tensor, as of most operations. ``single_of`` is the input that the only result views, or is.
    ``is_alone`` says that the caller gets just that tensor.
    """

    __slots__ = (
        "held", "is_alone", "mutates", "name", "num_in", "num_out", "number", "rebuild", "results",
        "single", "single_kind", "single_of",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        results: Sequence[Result],
        *,
        num_in: int,
        mutates: tuple[int, ...] = (),
        rebuild: Callable[[list[Any]], Any] | None = None,
        single: Callable[[], Any] | None = None,
        is_alone: bool = False,
        held: object = None,
    ) -> None:
        self.name = name
        self.number = 0
        self.num_in = num_in
        self.results = tuple(results)
        self.num_out = sum(result.kind != INPUT_ITSELF for result in results)
        self.mutates = mutates
        self.single = single
        self.is_alone = is_alone and len(results) == 1
        self.single_kind, self.single_of = (results[0][0], results[0][2]) if results else (FRESH, 0)
        self.rebuild = rebuild or _only
        self.held = held  # What its key compares by identity, and must not be freed before it.

    @property
    def kinds(self) -> list[int]:
        return [result.kind for result in self.results]


def _only(results: list[Any]) -> Any:
    return results[0] if results else None


class TemplateCache:
    """The templates in use, by key; the ones that were not used for longest are dropped.

    The order is kept by halves: a template that is found in the older half moves to the younger
    one, so that finding one in the younger half, the usual case, costs one look-up.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self.young: dict[Any, Template] = {}
        self._old: OrderedDict[Any, Template] = OrderedDict()
        self.num_misses = 0
        self._explained: list[str] | None = None

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def older(self, key: Any) -> Template | None:
        """Return a template from the older half, or ``None``; the caller looks into ``young``
        first."""
        found = self._old.pop(key, None)
        if found is not None:
            self.young[key] = found
        return found

    def put(self, key: Any, template: Template) -> list[Template]:
        """Add a template; return the templates that were dropped for it, which workers may
        forget."""
        self.num_misses += 1
        if self._explained is not None:
            known = [k for k in (*self.young, *self._old) if k[0] is key[0]]
            self._explained.append(f"{template.name}: {explain(key, known)}")
        self.young[key] = template
        if len(self.young) <= self._half:
            return []
        gone = list(self._old.values())
        self._old = OrderedDict(self.young)
        self.young.clear()
        return gone

    def explain_from_now(self) -> None:
        self._explained = []

    def explained(self) -> list[str]:
        """Return why each call since ``explain_from_now`` was not found, and stop collecting."""
        found, self._explained = self._explained or [], None
        return found
