"""An edit of twice as many statements takes twice the work, not four times.

Work is how often functions of the reloader are called, and how often a statement is looked at.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from monarch_reload.live.live_functions import Functions
from monarch_reload.plan.propagation import Propagation
from monarch_reload.source.statements import Statement

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
    "tables": ("", _lines("def f{i}():\n    return {k}\nT{i} = [f{i}]\nR{i} = T{i}[0]()\n"), ""),
    "members": (
        "class A:\n    z = 0\n",
        _lines("    x{i} = {k}\n    def f{i}(self):\n        return {k}\n"),
        "",
    ),
}


class _Work:
    """Counts while it is on."""

    def __init__(self) -> None:
        self.num = 0
        self._counted: dict[FunctionType, Callable[..., Any]] = {}

    def counted(self, function: FunctionType) -> Callable[..., Any]:
        """The same one each time: modules take functions from one another by name."""
        if function not in self._counted:

            @functools.wraps(function)
            def count(*args: Any, **kwargs: Any) -> Any:
                self.num += 1
                return function(*args, **kwargs)

            self._counted[function] = count
        return self._counted[function]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> _Work:
    counter = _Work()
    for owner in _owners():
        for name, value in list(vars(owner).items()):
            own = type(value) is FunctionType and value.__module__.startswith("monarch_reload")
            if own and not name.startswith("__"):
                monkeypatch.setattr(owner, name, counter.counted(value))

    def look(statement: Statement, name: str) -> Any:
        counter.num += 1
        return object.__getattribute__(statement, name)

    monkeypatch.setattr(Statement, "__getattribute__", look)
    return counter


def _owners() -> Iterator[Any]:
    """The modules of the reloader, and their classes."""
    for name, module in list(sys.modules.items()):
        if name.startswith("monarch_reload."):
            yield module
            yield from (
                value
                for value in vars(module).values()
                if isinstance(value, type) and value.__module__ == name
            )


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", _KINDS)
def test_work_grows_with_the_edit(kind: str, project: Project, work: _Work) -> None:
    head, lines, user = _KINDS[kind]
    counts = []
    for num in (40, 80, 160):
        name = f"cost_{kind}_{num}"
        project.load(name, head + lines(num, 0))
        if user:
            project.load(f"{name}_user", user.format(m=name))
        before = work.num
        project.edit(name, head + lines(num, 1))
        counts.append(work.num - before)
    once, twice = counts[1] - counts[0], counts[2] - counts[1]
    assert once > 40, counts
    assert twice < 2.6 * once, counts


def _functions(num: int, edited: int) -> str:
    return "".join(
        f"def f{i}(x):\n    return x + {i}{' + 1' * (i == num // 2) * edited}\n\n\n"
        for i in range(num)
    )


def test_only_what_was_edited_is_read_and_planned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project.load("cost_of_one", _functions(200, 0))
    project.edit("cost_of_one", _functions(200, 1))
    looked: list[str | None] = []
    num_read: list[int] = []
    forcing, parse = Propagation.forcing, ast.parse

    def look(self: Propagation, name: str, statement: Statement) -> Iterator[str]:
        looked.append(statement.name)
        return forcing(self, name, statement)

    def read(source: Any, *args: Any) -> Any:
        num_read.append(len(source.strip()))
        return parse(source, *args)

    monkeypatch.setattr(Propagation, "forcing", look)
    monkeypatch.setattr(ast, "parse", read)
    project.edit("cost_of_one", _functions(200, 2))
    assert module.f100(0) == 102
    assert set(looked) <= {"f99", "f100"}
    assert sum(num_read) < 200


@pytest.mark.parametrize(
    ("text", "num_searches"),
    [
        ("def f():\n    return {}\n", 0),
        ("class A:\n    def f(self):\n        return [{} for _ in range(2)]\n", 0),
        ("def f():\n    def g():\n        return {}\n    return g\n", 1),
        ("def f():\n    return lambda: {}\n", 1),
    ],
)
def test_closures_are_searched_for_where_the_file_makes_some(
    text: str, num_searches: int, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"cost_of_closures_{abs(hash(text))}"
    project.load(name, text.format(0))
    searched: list[int] = []
    living = Functions.living

    def counted() -> Functions:
        searched.append(1)
        return living()

    monkeypatch.setattr(Functions, "living", counted)
    project.edit(name, text.format(1))
    project.edit(name, text.format(2))
    assert len(searched) == 2 * num_searches


def test_modules_that_have_the_same_letters_in_them_are_not_work(
    project: Project, work: _Work
) -> None:
    lone, counts = "def f():\n    return {k}\nK = {k}\n", []
    lines = "".join(f"f{k} = K{k} = 1\n" for k in range(9))
    project.load("cost_lone", lone.format(k=0))
    for num in (2, 20):
        project.write(f"cost_pack{num}.__init__", "")
        for i in range(num):
            project.load(f"cost_pack{num}.m{i}", "from . import __name__ as f_or_K\n" + lines)
        project.edit("cost_lone", lone.format(k=num))  # The first one reads what is new.
        before = work.num
        project.edit("cost_lone", lone.format(k=num + 1))
        counts.append(work.num - before)
    assert counts[1] - counts[0] < 18 * 150, counts


def test_names_that_are_taken_by_dots_or_are_not_ascii_are_followed(project: Project) -> None:
    project.write("dotted_pack.__init__", "K = 1\né = 1\n")
    user = project.load("dotted_pack.user", "from . import K, é as e\nD = K\nE = e\n")
    assert (user.D, user.E) == (1, 1)
    project.edit("dotted_pack", "K = 1\né = 3\n")
    assert (user.D, user.E) == (1, 3)
    project.edit("dotted_pack", "K = 2\né = 3\n")
    assert (user.D, user.E) == (2, 3)
