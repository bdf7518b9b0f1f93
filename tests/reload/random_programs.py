"""Random programs of three modules, and random edits of them.

What a module computes at import follows from the sources alone, so after a reload each name has to
have what a new process would give it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["MODULES", "Program"]

MODULES = ("first", "second", "third")


class Kind(NamedTuple):
    """A statement: `n` is its name, `k` a number, `0` and `1` what it takes of the sorts `takes`.

    `probe` is an expression that shows what there is of it now.
    """

    sort: str
    text: str
    takes: tuple[str, ...] = ()
    probe: str = "{n}"


KINDS = (
    Kind("number", "{n} = {k}"),
    Kind("number", "{n} = {k} + {0}", ("number",)),
    Kind("number", "{n} = {k}\n{n} += {0}", ("number",)),
    Kind("number", "{n} = {0}({k})", ("function",)),
    Kind("number", "{n} = {0}({k}) + {1}", ("function", "number")),
    Kind("number", "{n}, {n}b = {0}({k}), {1}", ("function", "number"), "({n}, {n}b)"),
    Kind("number", "{n} = {0}(1) if {1} % 2 else {k}", ("function", "number")),
    Kind("number", "if {0} % 2:\n    {n} = {1}({k})\nelse:\n    {n} = {k}", ("number", "function")),
    Kind("number", "{n} = {0}().method({k})", ("class",)),
    Kind("number", "{n} = {0}.size + {k}", ("class",)),
    Kind("number", "{n} = {0}.method({k})", ("object",)),
    Kind("number", "{n} = {0}['one']({k})", ("table",)),
    Kind("number", "{n} = sum(map(lambda f: f({k}), {0}.values()))", ("table",)),
    Kind("rows", "{n} = [f({k}) for f in {0}.values()]", ("table",)),
    Kind("rows", "{n} = sorted({0}(x) for x in range({k} % 5))", ("function",)),
    Kind("rows", "{n} = {{'one': {0}, 'two': {k}}}", ("number",)),
    Kind("text", "{n} = f'{{{0}}} of {k}'", ("number",)),
    Kind("function", "def {n}(x):\n    return x + {k}", (), "{n}(3)"),
    Kind("function", "def {n}(x):\n    y = x + {0}\n    return y % 999", ("number",), "{n}(3)"),
    Kind("function", "def {n}(x):\n    return {0}(x) - {k}", ("function",), "{n}(3)"),
    Kind("function", "def {n}(x, y={0}, *, z={k}):\n    return x + y - z", ("number",), "{n}(3)"),
    Kind("function", "{n} = lambda x: x + {0} - {k}", ("number",), "{n}(3)"),
    Kind("function", "{n} = {0}({k})", ("maker",), "{n}(3)"),
    Kind("function", "@{0}\ndef {n}(x):\n    return x * 2 + {k}", ("decorator",), "{n}(3)"),
    Kind(
        "dispatcher",
        "@functools.singledispatch\ndef {n}(x):\n    return {k}\n"
        "@{n}.register\ndef _(x: int):\n    return {0}(x)",
        ("function",),
        "({n}(3), {n}('x'))",
    ),
    Kind("cached", "@functools.cache\ndef {n}(x):\n    return {0}(x) - {k}", ("function",), ""),
    Kind("partial", "{n} = functools.partial({0}, {k})", ("function",), "{n}()"),
    Kind("table", "{n} = {{'one': {0}, 'two': {1}}}", ("function", "function"), "{n}['two'](3)"),
    Kind(
        "table",
        "{n} = {{}}\ndef {n}_add(f):\n    {n}['one'] = f\n    return f\n"
        "@{n}_add\ndef {n}_one(x):\n    return {0}(x) + {k}",
        ("function",),
        "[f(2) for f in {n}.values()]",
    ),
    Kind(
        "maker",
        "def {n}(k):\n    def inner(x):\n        return x * k + {0}\n    return inner",
        ("number",),
        "{n}(2)(3)",
    ),
    Kind(
        "maker",
        "def {n}(k):\n    seed = {k}\n    def inner(x):\n        return x * k + {0}\n"
        "    return inner if seed >= 0 else None",
        ("number",),
        "{n}(0)(3)",
    ),
    Kind(
        "maker",
        "def {n}(k):\n    plus = lambda x: x + k + {0}\n    times = lambda x: x * k - {k}\n"
        "    return functools.partial(lambda f, x: f(x) + {1}, (plus, times)[k % 2])",
        ("number", "number"),
        "({n}(2)(3), {n}(1)(3))",
    ),
    Kind(
        "maker",
        "def {n}(k):\n    level = {0}\n    class Local:\n        def method(self, x):\n"
        "            return x + k - {k}\n        def __call__(self, x):\n"
        "            return self.method(x) * 2\n    return Local()",
        ("number",),
        "{n}(2)(3)",
    ),
    Kind(
        "decorator",
        "def {n}(f):\n    kept = {k}\n    def wrapper(x):\n        return f(x) - {0}\n"
        "    return wrapper",
        ("number",),
        "{n}(abs)(3)",
    ),
    Kind(
        "decorator",
        "def {n}(f):\n    @functools.wraps(f)\n    def wrapper(x):\n        return f(x) + {k}\n"
        "    return wrapper",
        (),
        "{n}(abs)(3)",
    ),
    Kind(
        "class",
        "class {n}:\n    size = {k} + {0}\n"
        "    def method(self, x):\n        return self.size + {1}(x)\n"
        "    @property\n    def twice(self):\n        return self.size * 2",
        ("number", "function"),
        "({n}().method(3), {n}().twice)",
    ),
    Kind(
        "class",
        "class {n}({0}):\n    more = {k}\n    def method(self, x):\n"
        "        return super().method(x) + self.more",
        ("class",),
        "({n}().method(3), {n}().twice)",
    ),
    Kind("object", "{n} = {0}()", ("class",), "{n}.method(3)"),
    Kind(
        "row", "@dataclasses.dataclass\nclass {n}:\n    v: int = {k} + {0}", ("number",), "{n}().v"
    ),
    Kind(
        "row", "class {n}(typing.NamedTuple):\n    v: int = {k} + {0}", ("number",), "{n}().v"
    ),
    Kind(
        "enum", "class {n}(enum.Enum):\n    A = {k} + {0}\n    B = -{k} - 1", ("number",),
        "[one.value for one in {n}]",
    ),
)  # fmt: skip
_GIVEN = {"maker": "1", "decorator": "abs"}
_WHERE_THERE_IS_NONE = {"number": "1", "function": "abs"}


@dataclass(eq=False)
class Line:
    kind: Kind
    module: int
    name: str
    number: int
    taken: list[Line | None]


class Program:
    """`texts` gives its sources; `edit` changes some of them."""

    def __init__(self, seed: int, package: str) -> None:
        self._random = random.Random(seed)
        self._package = package
        self._num_lines = 0
        self._by_name = [[self._random.random() < 0.5 for _ in MODULES] for _ in MODULES]
        self._lines: list[list[Line]] = [[] for _ in MODULES]
        for module in range(len(MODULES)):
            for _ in range(self._random.randint(5, 11)):
                self._add(module)

    def texts(self) -> dict[str, str]:
        return {name: self._text(module) for module, name in enumerate(MODULES)}

    def probes(self) -> Iterator[tuple[str, str]]:
        """Expressions, each with its module."""
        for module, lines in enumerate(self._lines):
            for line in lines:
                if line.kind.probe:
                    yield MODULES[module], line.kind.probe.format(n=line.name)

    def makers(self) -> Iterator[tuple[str, str, str]]:
        """Functions that make functions, each with its module and what it may be given."""
        for module, lines in enumerate(self._lines):
            for line in lines:
                if line.kind.sort in _GIVEN:
                    yield MODULES[module], line.name, _GIVEN[line.kind.sort]

    def has(self, module: str, name: str) -> bool:
        """Whether a module defines a name."""
        return any(line.name == name for line in self._lines[MODULES.index(module)])

    def edit(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            module = self._random.randrange(len(MODULES))
            if not self._lines[module]:
                self._add(module)
                continue
            line = self._random.choice(self._lines[module])
            how = self._random.random()
            if how < 0.55:
                line.number = self._random.randint(0, 50)
            elif how < 0.7:
                self._add(module)
            elif how < 0.8 and not self._is_taken(line) and len(self._lines[module]) > 1:
                self._lines[module].remove(line)
            elif line.taken:
                place = self._random.randrange(len(line.taken))
                sort, before = line.kind.takes[place], self._lines[module].index(line)
                line.taken[place] = self._some(sort, module, before)

    def _add(self, module: int) -> None:
        kind = self._random.choice(KINDS)
        taken = [self._some(sort, module, None) for sort in kind.takes]
        if all(
            one or sort in _WHERE_THERE_IS_NONE for one, sort in zip(taken, kind.takes, strict=True)
        ):
            self._num_lines += 1
            name = f"{kind.sort}{self._num_lines}"
            number = self._random.randint(0, 50)
            self._lines[module].append(Line(kind, module, name, number, taken))

    def _some(self, sort: str, module: int, before: int | None) -> Line | None:
        """Something of a sort from above."""
        above = [line for lines in self._lines[:module] for line in lines]
        above += self._lines[module][:before]
        found = [line for line in above if line.kind.sort == sort]
        return self._random.choice(found) if found else None

    def _is_taken(self, line: Line) -> bool:
        return any(line in other.taken for lines in self._lines for other in lines)

    def _text(self, module: int) -> str:
        lines = self._lines[module]
        found = ["import dataclasses, enum, functools, typing"]
        for other, name in enumerate(MODULES[:module]):
            taken = {t.name for line in lines for t in line.taken if t and t.module == other}
            if taken and self._by_name[module][other]:
                found.append(f"from {self._package}.{name} import {', '.join(sorted(taken))}")
            elif taken:
                found.append(f"from {self._package} import {name}")
        for line in lines:
            pairs = zip(line.taken, line.kind.takes, strict=True)
            taken_as = [self._spelled(one, sort, module) for one, sort in pairs]
            found.append(line.kind.text.format(*taken_as, n=line.name, k=line.number))
        return "\n".join(found) + "\n"

    def _spelled(self, line: Line | None, sort: str, module: int) -> str:
        if line is None:
            return _WHERE_THERE_IS_NONE[sort]
        is_plain = line.module == module or self._by_name[module][line.module]
        return line.name if is_plain else f"{MODULES[line.module]}.{line.name}"
