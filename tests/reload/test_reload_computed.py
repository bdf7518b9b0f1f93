"""What modules computed at import, in whichever way they called what was edited."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Project, walk
from .matrix_cases import Case, Step

_HOW = {
    "list": "R = [f(x) for x in (1, 2)]",
    "dict": "R = {x: f(x) for x in (1, 2)}",
    "generator": "R = tuple(f(x) for x in (1, 2))",
    "condition": "R = [x for x in (-1, 2) if f(x)]",
    "map": "R = list(map(f, (1, 2)))",
    "unpacked_map": "R = [*map(f, (1, 2))]",
    "filter": "R = list(filter(f, (-1, 2)))",
    "key": "R = sorted([3, 1, 2], key=f)",
    "reduce": "import functools\nR = functools.reduce(lambda a, b: a + f(b), (1, 2, 3), 0)",
    "lambda": "R = (lambda: f(1))()",
    "own_caller": "R = apply(f, 3)",
    "method_of_a_new_instance": "R = C().m(1)",
    "annotations": "import inspect\nR = str(inspect.signature(f))",
}
_DEFINITIONS = """def f(x: {kind}): return x + 1
def apply(fn, x): return fn(x)
class C:
    def m(self, x): return f(x)
"""
_BEFORE, _AFTER = (
    _DEFINITIONS.format(kind="int"),
    _DEFINITIONS.format(kind="float").replace("x + 1", "-x + 1"),
)


@pytest.mark.parametrize("how", _HOW)
def test_a_value_follows_the_function_that_computed_it(how: str, project: Project) -> None:
    user = f"from {how}_mod import *\n{_HOW[how]}\n"
    project.load(f"{how}_mod", _BEFORE)
    module = project.load(f"{how}_user", user)
    alone = project.load(f"{how}_alone", _BEFORE + _HOW[how])
    project.edit(f"{how}_mod", _AFTER)
    project.edit(f"{how}_alone", _AFTER + _HOW[how])
    expected: dict[str, Any] = {}
    exec(compile(_AFTER + _HOW[how], "<fresh>", "exec", dont_inherit=True), expected)
    assert module.R == alone.R == expected["R"]


CASES = [
    Case(
        "lambda_that_is_handed_over_and_lives_on",
        {
            "~a": "def f(x):\n    return x + 1\nclass Schedule:\n    def __init__(self, rule):\n        self.rule, self.at = rule, 0\nschedule = Schedule(lambda x: f(x))\n"
        },
        "import ~a as m; schedule = m.schedule; schedule.at = 5",
        [
            Step(
                {"~a": [("x + 1", "x + 2")]},
                "assert m.schedule is schedule and schedule.at == 5 and schedule.rule(1) == 3",
            )
        ],
    ),
    Case(
        "blocks_made_in_a_comprehension_live_on",
        {
            "~a": "class Block:\n    def __init__(self, n):\n        self.n = n\n    def f(self):\n        return self.n\nBLOCKS = [Block(n) for n in range(2)]\n"
        },
        "import ~a as m; blocks, first = m.BLOCKS, m.BLOCKS[0]",
        [
            Step(
                {
                    "~a": [
                        ("return self.n", "return -self.n - 1"),
                        ("class Block:", "class Block:\n    extra = 1"),
                    ]
                },
                "assert m.BLOCKS is blocks and blocks[0] is first and first.f() == -1 and first.extra == 1",
            )
        ],
    ),
    Case(
        "list_of_bound_methods_is_not_made_again",
        {
            "~a": "class Trainer:\n    def on_step(self):\n        return 'old'\ntrainer = Trainer()\nHOOKS = [trainer.on_step]\n"
        },
        "import ~a as m; hooks = m.HOOKS; hooks.append(len)",
        [
            Step(
                {"~a": [("'old'", "'new'")]},
                "assert m.HOOKS is hooks and hooks[1] is len and hooks[0]() == 'new'",
            )
        ],
    ),
    Case(
        "member_of_an_enum_by_its_value",
        {
            "~a": "import enum\nclass Mode(enum.Enum):\n    A = 1\n    B = 2\n",
            "~b": "from ~a import Mode\nMODE = Mode(2)\n",
        },
        "import ~a as m, ~b as user; b = m.Mode.B",
        [
            Step(
                {"~a": [("B = 2", "B = 3\n    C = 2")]},
                "assert user.MODE is m.Mode.C and m.Mode.B is b",
            ),
            Step(
                {"~a": [("\n    C = 2", "")]}, "assert user.MODE.name == 'C'", refused="ValueError"
            ),
        ],
    ),
    Case(
        "function_that_imports_when_it_is_called",
        {
            "~b": "def use():\n    from ~a import V\n    import ~a as a\n    return V, a.V\nR = use()\n",
            "~a": "V = 1\n",
        },
        "import ~b as user, ~a",
        [Step({"~a": [("V = 1", "V = 2")]}, "assert user.R == user.use() == (2, 2), user.R")],
    ),
    Case(
        "function_that_imports_late_what_imports_its_module",
        {
            "~b": "BASE = 1\ndef use():\n    from ~a import V\n    return V\n",
            "~a": "import ~b\nV = ~b.BASE + 1\nR = ~b.use\n",
        },
        "import ~b as user, ~a as m",
        [Step({"~b": [("BASE = 1", "BASE = 5")]}, "assert user.use() == m.V == 6")],
    ),
    Case(
        "imports_in_a_class_body",
        {
            "~a": "X = 1\ndef f(self):\n    return 'old'\n",
            "~b": "class K:\n    import ~a as a\n    from ~a import X, f\n    Y = X + 1\n    Z = a.X\n    KEPT = []\n",
        },
        "import ~b as m; K, k = m.K, m.K(); kept = K.KEPT",
        [
            Step(
                {"~a": [("X = 1", "X = 5")]},
                "assert m.K is K and (k.X, k.Y, k.Z) == (5, 6, 5) and k.KEPT is kept, (k.X, k.Y, k.Z)",
            ),
            Step({"~a": [("'old'", "'new'")]}, "assert k.f() == 'new' and k.X == 5"),
            Step(
                {"~a": [("X = 5", "Y = 5")]},
                "assert k.X == 5",
                refused="cannot import name 'X'",
            ),
        ],
    ),
    Case(
        "imports_in_a_class_body_of_a_package",
        {
            "~p.__init__": "",
            "~p.a": "X = 1\n",
            "~p.b": "class K:\n    from .a import X\n    from . import a\n    Z = a.X\n",
        },
        "import ~p.b as m; k = m.K()",
        [Step({"~p.a": [("X = 1", "X = 5")]}, "assert (k.X, k.Z) == (5, 5)")],
    ),
    Case(
        "other_decorators_without_wraps",
        {
            "~a": "def d1(f):\n    def inner(*a):\n        return ('d1', f(*a))\n    return inner\ndef d2(f):\n    def other(*a):\n        return ('d2', f(*a))\n    return other\n@d1\ndef f(x):\n    return x\n",
            "~b": "from ~a import f\nHELD = [f]\n",
        },
        "import ~a as m, ~b as user; f = m.f; held = user.HELD\ndef all(): return [g(1) for g in (m.f, user.f, f, held[0])]",
        [
            Step(
                {"~a": [("@d1", "@d2")]},
                "assert all() == [('d2', 1)] * 4 and user.HELD is held, all()",
            ),
            Step({"~a": [("@d2\n", "")]}, "assert all() == [1] * 4 and user.HELD is held, all()"),
            Step({"~a": [("return x", "return x + 1")]}, "assert all() == [2] * 4, all()"),
            Step({"~a": [("def f(", "@d1\ndef f(")]}, "assert all() == [('d1', 2)] * 4, all()"),
        ],
    ),
    Case(
        "name_that_was_an_alias_gets_a_function_of_its_own",
        {"~a": "def f():\n    return 'f'\ng = f\n"},
        "import ~a as m; f = m.f",
        [
            Step(
                {"~a": [("g = f\n", "def g():\n    return 'g'\n")]},
                "assert (m.f(), f(), m.g()) == ('f', 'f', 'g')",
            )
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_computed_and_what_is_held(case: Case, project: Project) -> None:
    walk(case, project)


_FAR = {
    "super": (
        "def helper(x): return x + 1\nclass Base:\n    def m(self, x): return helper(x)\n",
        "from far_super import Base\nclass Sub(Base):\n    def m(self, x): return super().m(x)\n"
        "R = Sub().m(1)\n",
    ),
    "rows": (
        "def helper(x): return x + 1\ndef f(x): return helper(x)\n",
        "from far_rows import f\nTABLE = {'a': f}\nR = [g(1) for g in TABLE.values()]\n",
    ),
    "value_of_a_class": (
        "ONE = 1\nclass C:\n    size = ONE\n    twice = size * 2\n    def m(self): return self.twice\n",
        "from far_value_of_a_class import C\nkept = C()\nR = kept.m()\n",
    ),
    "lambda_in_a_table": (
        "f = lambda x: x + 1\n",
        "import far_lambda_in_a_table as m\nTABLE = {'a': m.f}\nR = TABLE['a'](1)\n",
    ),
    "made_in_a_table": (
        "def maker(k):\n    def inner(x): return x * k + 1\n    return inner\n",
        "from far_made_in_a_table import maker\nTABLE = {'a': maker(3)}\nR = TABLE['a'](1)\n",
    ),
}


@pytest.mark.parametrize("how", _FAR)
def test_a_value_follows_what_is_called_on_the_way(how: str, project: Project) -> None:
    owner, user = _FAR[how]
    project.load(f"far_{how}", owner)
    module = project.load(f"far_{how}_user", user)
    before = module.R
    project.edit(f"far_{how}", owner.replace("+ 1", "+ 2").replace("ONE = 1", "ONE = 2"))
    fresh = project.load(f"far_{how}_fresh", user)
    assert module.R == fresh.R != before


def test_a_list_that_others_add_to_stays(project: Project) -> None:
    owner = "def helper(x): return x + 1\ndef f(x): return helper(x)\n"
    project.load("added_to", owner)
    module = project.load("added_to_user", "from added_to import f\nR = {'a': f(1)}\n")
    module.R["b"] = 7
    project.edit("added_to", owner.replace("+ 1", "+ 2"))
    assert module.R == {"a": 2, "b": 7}


@pytest.mark.parametrize("line", ["from keeper_b import kept", "import keeper_b"])
def test_a_value_follows_an_instance_that_another_module_keeps(line: str, project: Project) -> None:
    owner = "class C:\n    size = 9\n    def m(self, x): return self.size + x\n"
    project.load("keeper_a", owner)
    keeper = project.load("keeper_b", "from keeper_a import C\nkept = C()\n")
    name = "kept" if "from" in line else "keeper_b.kept"
    user = project.load(f"keeper_{len(line)}", f"{line}\nR = {name}.m(1)\n")
    kept = keeper.kept
    project.edit("keeper_a", owner.replace("9", "3"))
    assert (user.R, kept.m(1)) == (4, 4)
    assert keeper.kept is kept
    project.edit("keeper_a", owner)
