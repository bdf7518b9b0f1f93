"""The pure half: what an edit did to each statement, and what therefore runs."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_reload.plan.graph import ModuleEdit, NameKind
from monarch_reload.plan.plan import make_plan
from monarch_reload.source.alignment import align
from monarch_reload.source.names import Use, names_of
from monarch_reload.source.source import decoded_lines
from monarch_reload.source.statements import Statement, split

from .conftest import Project


def statements(text: str) -> tuple[Statement, ...]:
    return split(ast.parse(text).body, decoded_lines(text.encode()))


def single(text: str) -> ast.stmt:
    (node,) = ast.parse(text).body
    return node


@pytest.mark.parametrize(
    ("text", "binds", "eager", "deferred"),
    [
        ("x = y", {"x"}, {("y", Use.HELD)}, set()),
        ("x += y.z", {"x"}, {("x", Use.HELD), ("y.z", Use.HELD)}, set()),
        ("a, *b = f(c)", {"a", "b"}, {("f", Use.CALLED), ("c", Use.PASSED)}, set()),
        ("f(c)", set(), {("f", Use.CALLED), ("c", Use.HELD)}, set()),
        ("x = A().m()", {"x"}, {("A", Use.USED)}, set()),
        ("import a.b, c as d", {"a", "d"}, set(), set()),
        ("x: T = [i for i in n if i != k]", {"x"}, {("T", Use.HELD), ("n", Use.USED), ("k", Use.HELD)}, set()),  # noqa: E501
        ("def f(a, b=c) -> r:\n  d = a + e\n  global g\n  g = 1\n  return d + g", {"f"}, {("c", Use.HELD), ("r", Use.HELD)}, {"e", "g"}),  # noqa: E501
        ("@d(x)\nclass K(B, m=M):\n  a = b\n  c = a\n  def f(self): return q.r", {"K"}, {("d", Use.USED), ("x", Use.HELD), ("B", Use.BASE), ("M", Use.BASE), ("b", Use.HELD)}, {"q.r"}),  # noqa: E501
        ("with open(p) as fh:\n  t = fh", {"fh", "t"}, {("open", Use.CALLED), ("p", Use.PASSED), ("fh", Use.HELD)}, set()),  # noqa: E501
        ("try:\n  import x\nexcept E as e:\n  x = None", {"x", "e"}, {("E", Use.HELD)}, set()),
        ("f = lambda v: v + w", {"f"}, {("w", Use.WITHIN)}, set()),
        ("for i in s: pass", {"i"}, {("s", Use.USED)}, set()),
    ],
)  # fmt: skip
def test_names(text: str, binds: set[str], eager: set[tuple[str, Use]], deferred: set[str]) -> None:
    found = names_of(single(text))
    assert found.binds == binds
    assert found.eager == eager
    assert found.deferred == deferred


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("x = 1", "x = 1  # why", "same"),
        ("x = 1", "x = 2", "changed"),
        ("def f(): return 1", "def f(): return 2", "narrow"),
        ("def f(a): return 1", "def f(b): return 1", "narrow"),
        ("def f(a): return 1", "def f(a=1): return 1", "renewed"),
        ("def f(a): return 1", "def f(a: int): return 1", "renewed"),
        ("def f(): 'doc'", "def f(): 'other'", "renewed"),
        ("def f(): pass", "async def f(): pass", "changed"),
        ("@d\ndef f(): return 1", "@d\ndef f(): return 2", "narrow"),
        ("@d\ndef f(): return 1", "@e\ndef f(): return 1", "renewed"),
        ("class A:\n  x = 1\n  def m(self): return 1", "class A:\n  x = 1\n  def m(self): return 2", "narrow"),  # noqa: E501
        ("class A:\n  x = 1", "class A:\n  x = 2", "renewed"),
        ("class A: pass", "class A(B): pass", "renewed"),
    ],
)  # fmt: skip
def test_alignment(old: str, new: str, kind: str) -> None:
    alignment = align(statements(old), statements(new))
    found = [name for name in ("same", "narrow", "renewed") if getattr(alignment, name) == {0: 0}]
    assert (found or ["changed"]) == [kind]


def test_import_statements_are_taken_apart() -> None:
    alignment = align(statements("from m import a, b"), statements("from m import a, c, b"))
    assert alignment.same == {0: 0, 2: 1}


def edit_of(name: str, old: str, new: str | None = None) -> ModuleEdit:
    before = statements(old)
    after = before if new is None else statements(new)
    kinds = {bound: NameKind.OTHER for statement in before for bound in statement.binds}
    return ModuleEdit(name, "", before, after, align(before, after), kinds)


def runs(changed: list[ModuleEdit], others: list[ModuleEdit]) -> list[tuple[str, list[str]]]:
    def importers(module: str, names: object) -> Iterator[ModuleEdit]:
        return iter(others)

    plan = make_plan(changed, importers, [edit.name for edit in [*changed, *others]])
    return [
        (name, [module.edit.new[index].title for index in sorted(module.run)])
        for name, module in plan.modules.items()
    ]


def test_what_a_plan_runs_and_in_which_order() -> None:
    others = [
        edit_of("c", "from b import D\nE = D"),
        edit_of("b", "import a\nD = a.C + 1\nZ = a.other"),
    ]
    changed = edit_of("a", "C = 1\nother = 2", "C = 2\nother = 2")
    assert runs([changed], others) == [
        ("a", ["C = 2"]),
        ("b", ["D = a.C + 1"]),
        ("c", ["from b import D", "E = D"]),
    ]


def test_a_cycle_ends() -> None:
    changed = edit_of("a", "import b\nC = 1\nF = b.D", "import b\nC = 2\nF = b.D")
    others = [edit_of("b", "import a\nD = a.C")]
    assert dict(runs([changed], others)) == {"a": ["C = 2", "F = b.D"], "b": ["D = a.C"]}


def test_all_binders_of_a_name_run_together() -> None:
    changed = edit_of("a", "x = 1\nx += 1\ny = 5", "x = 1\nx += 2\ny = 5")
    assert runs([changed], []) == [("a", ["x = 1", "x += 2"])]


CONSTANTS = [f"C{i}" for i in range(3)]
FUNCTIONS = [f"f{i}" for i in range(3)]
CLASSES = ["K0", "K1"]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Constants, functions that read them and each other, classes, and computed values."""
    blocks = ["STATE = []"]
    defined: list[str] = []
    for name in CONSTANTS:
        blocks.append(f"{name} = {draw(st.integers(0, 3))}")
        defined.append(name)
    for name in FUNCTIONS:
        read = draw(st.sampled_from(defined))
        call = "()" if read.startswith("f") else ""
        default = draw(st.sampled_from(["", "extra=1", "extra=2"]))
        plus = " + extra" if default else ""
        body = f"return ({read}{call}, {draw(st.integers(0, 3))}{plus})"
        block = f"def {name}({default}):\n    {body}"
        if draw(st.booleans()):
            block = f"@deco\n{block}"
        blocks.append(block)
        defined.append(name)
    blocks.insert(
        1,
        "import functools\ndef deco(g):\n    @functools.wraps(g)\n    def w(*a):\n"
        f"        return [{draw(st.integers(0, 2))}, g(*a)]\n    return w",
    )
    for name in CLASSES:
        base = f"({draw(st.sampled_from(['K0', 'P']))})" if name == "K1" else "(P)"
        lines = [f"    v{i} = {draw(st.integers(0, 2))}" for i in range(draw(st.integers(0, 2)))]
        if draw(st.booleans()):
            lines.append(f"    def m(self):\n        return {draw(st.sampled_from(defined))}")
        blocks.append("\n".join([f"class {name}{base}:", *lines, "    pass"]))
    blocks.insert(1, "class P:\n    pass")
    if draw(st.booleans()):
        # Of the first function, which calls no other: an edit runs its direct callers again.
        blocks.append("V_f0 = f0()")
    if draw(st.booleans()):
        blocks.append(f"SUM = {draw(st.sampled_from(CONSTANTS))} + 1")
    if draw(st.booleans()):
        blocks.insert(draw(st.integers(0, len(blocks))), "# a comment\n# of two lines")
    return "\n".join(blocks) + "\n"


def observed(module: types.ModuleType) -> dict[str, object]:
    seen: dict[str, object] = {}
    for name, value in vars(module).items():
        if name.startswith(("C", "V_", "SUM")):
            seen[name] = value
        elif name in FUNCTIONS:
            code = getattr(value, "__wrapped__", value).__code__
            seen[name] = (value(), code.co_firstlineno)
        elif name in CLASSES:
            own = {k: v for k, v in vars(value).items() if k.startswith("v")}
            method = getattr(value(), "m", None)
            result = method() if method else None
            if callable(result):
                result = result()
            seen[name] = (own, result, [base.__name__ for base in value.__mro__])
    return seen


@pytest.mark.long
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(versions=st.lists(programs(), min_size=2, max_size=4))
def test_reloaded_equals_freshly_imported(project: Project, versions: list[str]) -> None:
    sys.modules.pop("prop_mod", None)
    module = project.load("prop_mod", versions[0])
    state, held = module.STATE, {name: getattr(module, name) for name in [*FUNCTIONS, *CLASSES]}
    instances = {name: held[name]() for name in CLASSES}
    state.append("live")
    before: types.ModuleType = module
    for version in versions[1:]:
        project.edit("prop_mod", version)
        fresh = types.ModuleType("prop_mod")
        exec(compile(version, str(project.path("prop_mod")), "exec"), vars(fresh))
        assert observed(module) == observed(fresh)
        assert module.STATE is state
        for name in CLASSES:
            assert getattr(module, name) is held[name]
            assert type(instances[name]) is held[name]
            new = vars(fresh)[name]()
            assert hasattr(instances[name], "m") == hasattr(new, "m")
    assert before is importlib.import_module("prop_mod")
    # Back to the start in one step, and undone again.
    last = observed(module)
    report = project.edit("prop_mod", versions[0])
    report.undo()
    assert observed(module) == last
    assert state == ["live"]
