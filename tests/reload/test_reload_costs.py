"""An edit of twice as many statements takes twice the work, not four times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Project

_REGISTRY = (
    "TABLE, LINE = {}, []\n"
    "def register(f):\n    TABLE[f.__name__] = f\n    LINE.append(f)\n    return f\n"
)


def _lines(text: str) -> Callable[[int, int], str]:
    """Of a text by the number of lines and that of the edit: `{i}` is the line, `{k}` the edit."""

    def make(num: int, edit: int) -> str:
        return "".join(text.format(i=i, before=i - 1, k=edit) for i in range(1, num + 1))

    return make


_KINDS: dict[str, tuple[str, Callable[[int, int], str], str]] = {
    "constants": ("", _lines("C{i} = {i} + {k}\n"), ""),
    "chain": ("C0 = 0\n", _lines("C{i} = C{before} + 1 + {k}\n"), ""),
    "taken_by_star": (
        "",
        _lines("C{i} = {i} + {k}\n"),
        "from {m} import *\n" + _lines("D{i} = C{i}\n")(20, 0),
    ),
    "lambdas": ("", _lines("f{i} = lambda: {i} + {k}\n"), ""),
    "registrations": (_REGISTRY, _lines("@register\ndef f{i}(x={k}):\n    return {i}\n"), ""),
    "members": (
        "class A:\n    z = 0\n",
        _lines("    x{i} = {k}\n    def f{i}(self):\n        return {k}\n"),
        "",
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_work_grows_with_the_edit(kind: str, project: Project) -> None:
    head, lines, user = _KINDS[kind]
    counts = []
    for num in (40, 80, 160):
        name = f"cost_{kind}_{num}"
        project.load(name, head + lines(num, 0))
        if user:
            project.load(f"{name}_user", user.format(m=name))
        counts.append(_calls(lambda name=name, num=num: project.edit(name, head + lines(num, 1))))  # type: ignore[misc]
    once, twice = counts[1] - counts[0], counts[2] - counts[1]
    assert twice < 2.6 * once, counts


def _calls(work: Callable[[], object]) -> int:
    """How many functions are called meanwhile."""
    num = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal num
        num += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return num
