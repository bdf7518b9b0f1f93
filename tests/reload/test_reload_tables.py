"""Values that modules computed by way of tables, registries and dispatchers."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Project, walk
from .matrix_cases import Case, Step

_DEFINITIONS = """def f():
    return 1
def g():
    return 2
class A:
    k = 1
    def m(self):
        return 1
"""
_TABLES = """import functools
STEPS = [f, g]
BY_NAME = {'f': f, 'deep': {'g': (0, g)}}
PARTIAL = functools.partial(f)
CLASSES = {'a': A}
OBJECTS = [A(), A()]
FILLED = []
FILLED.append(f)
"""
_HOW = {
    "comprehension": "[step() for step in STEPS]",
    "dict_comprehension": "{name: step() for name, step in enumerate(STEPS)}",
    "subscript": "BY_NAME['f']()",
    "get": "BY_NAME.get('f')()",
    "deep": "BY_NAME['deep']['g'][1]()",
    "nested_loops": "[step() for steps in (STEPS, FILLED) for step in steps]",
    "map": "list(map(lambda step: step(), STEPS))",
    "sum": "sum(step() for step in STEPS)",
    "partial": "PARTIAL()",
    "filled": "FILLED[0]()",
    "class_value": "CLASSES['a'].k",
    "class_method": "CLASSES['a']().m()",
    "objects": "[one.m() for one in OBJECTS]",
    "by_a_function": "run()[0]",
}
_RUN = "def run():\n    return tuple(step() for step in STEPS)\n"
_AFTER = _DEFINITIONS.replace("return ", "return 10 * ").replace("k = 1", "k = 5")


@pytest.mark.parametrize("how", _HOW)
def test_a_value_follows_what_a_table_holds(how: str, project: Project) -> None:
    value = f"R = {_HOW[how]}\n"
    project.load(f"{how}_defs", _DEFINITIONS)
    tables = project.load(f"{how}_tables", f"from {how}_defs import f, g, A\n{_TABLES}{_RUN}")
    whole = f"import {how}_tables\nfrom {how}_tables import *\n{value}"
    user = project.load(f"{how}_user", whole)
    alone = project.load(f"{how}_alone", _DEFINITIONS + _TABLES + _RUN + value)
    before = [vars(module)[name] for module in (tables, alone) for name in ("STEPS", "OBJECTS")]
    for module, name in ((f"{how}_defs", ""), (f"{how}_alone", _TABLES + _RUN + value)):
        prepared = project.prepare(**{module: _AFTER + name})
        prepared.abort()
        assert alone.STEPS[0]() == 1
        assert alone.OBJECTS[1].m() == 1
        project.edit(module, _AFTER + name)
    expected: dict[str, Any] = {}
    exec(_AFTER + _TABLES + _RUN + value, expected)
    assert user.R == alone.R == expected["R"]
    after = [vars(module)[name] for module in (tables, alone) for name in ("STEPS", "OBJECTS")]
    assert all(one is other and len(one) == 2 for one, other in zip(before, after, strict=True))
    assert type(tables.OBJECTS[0]) is tables.A
    assert tables.STEPS[0] is tables.f


_SHOW = "import functools\n@functools.singledispatch\ndef show(x):\n    return 'any'\n"
_REGISTRY = (
    "REG = {}\ndef register(f):\n    REG[f.__name__] = f\n    return f\n"
    "def call(name):\n    return REG[name]()\n"
)

CASES = [
    Case(
        "dispatcher_with_an_edited_implementation",
        {
            "~a": _SHOW,
            "~p": "from ~a import show\n@show.register\ndef _(x: int):\n    return 'int'\n",
            "~u": "import ~p\nfrom ~a import show\nX = show(3)\nY = [show(one) for one in (1, 'a')]\n",
        },
        "import ~u as u, ~a as m",
        [
            Step(
                {"~p": [("'int'", "'INT'")]},
                "assert (u.X, u.Y) == ('INT', ['INT', 'any']) and m.show(3) == 'INT', u.X",
            )
        ],
    ),
    Case(
        "dispatcher_with_one_of_several_implementations_taken_away",
        {
            "~a": _SHOW,
            "~p": "from ~a import show\n@show.register\ndef _(x: int):\n    return 'int'\n@show.register\ndef _(x: str):\n    return 'str'\n",
        },
        "import ~p, ~a as m; show = m.show",
        [
            Step(
                {"~p": [("@show.register\ndef _(x: str):\n    return 'str'\n", "")]},
                "assert (show('s'), show(1)) == ('any', 'int'), show('s')",
            ),
            Step(
                {
                    "~p": "from ~a import show\n@show.register\ndef _(x: str):\n    return 'STR'\n@show.register\ndef _(x: int):\n    return 'INT'\n"
                },
                "assert (show('s'), show(1)) == ('STR', 'INT')",
            ),
        ],
    ),
    Case(
        "registry_in_another_module",
        {
            "~a": _REGISTRY,
            "~p": "from ~a import register\n@register\ndef one():\n    return 1\n",
            "~u": "import ~p\nfrom ~a import REG, call\nALL = {name: f() for name, f in REG.items()}\nONE = REG['one']()\nCALLED = call('one')\n",
        },
        "import ~u as u, ~a as m; reg, one = m.REG, m.REG['one']",
        [
            Step(
                {"~p": [("return 1", "return 11")]},
                "assert (u.ALL, u.ONE, u.CALLED) == ({'one': 11}, 11, 11), u.ALL; assert m.REG is reg and reg == {'one': one}",
            )
        ],
    ),
    Case(
        "hooks_of_a_loop_are_not_registered_twice",
        {
            "~a": "HOOKS = []\ndef f():\n    return 'old'\nTABLE = {'f': f}\nfor hook in TABLE.values():\n    HOOKS.append(hook)\n"
        },
        "import ~a as m; hooks = m.HOOKS",
        [
            Step(
                {"~a": [("'old'", "'new'")]},
                "assert m.HOOKS is hooks and [hook() for hook in hooks] == ['new']",
            )
        ],
    ),
    Case(
        "objects_made_of_a_table_live_on",
        {
            "~a": "class A:\n    def m(self):\n        return 'old'\nKINDS = {'a': A}\nobject_ = KINDS['a']()\nALL = [kind() for kind in KINDS.values()]\n"
        },
        "import ~a as m; one, all_ = m.object_, m.ALL",
        [
            Step(
                {"~a": [("'old'", "'new'"), ("class A:", "class A:\n    extra = 1")]},
                "assert m.object_ is one and m.ALL is all_ and one.m() == all_[0].m() == 'new'",
            )
        ],
    ),
    Case(
        "what_was_made_of_listed_objects_lives_on",
        {
            "~a": "class Net:\n    def __init__(self):\n        self.weights = [1]\n    def parameters(self):\n        return self.weights\n    def forward(self):\n        return 'old'\nclass Optimizer:\n    def __init__(self, what):\n        self.what, self.steps = what, 0\nNETS = [Net(), Net()]\noptimizer = Optimizer([w for net in NETS for w in net.parameters()])\nsecond = Optimizer([net.parameters() for net in NETS])\n"
        },
        "import ~a as m; nets, kept = m.NETS, [m.optimizer, m.second]; kept[0].steps = 5\ndef same(): return [m.optimizer, m.second] == kept and m.NETS is nets",
        [
            Step({"~a": [("'old'", "'new'")]}, "assert same() and nets[0].forward() == 'new'"),
            Step(
                {"~a": [("class Net:", "class Net:\n    scale = 2")]},
                "assert same() and nets[0].scale == 2",
            ),
            Step({"~a": [("return self.weights", "return self.weights[:1]")]}, "assert same()"),
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tables_and_registries(case: Case, project: Project) -> None:
    walk(case, project)
