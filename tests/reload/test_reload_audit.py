"""The audit: old code that lives on is told, each kind made by hand; what is right is not told."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import multiprocessing
import os
import runpy
import signal
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch_reload import AuditReport, NeedsRespawn

from .conftest import Project


def edit(project: Project, name: str, *pairs: tuple[str, str]) -> AuditReport:
    """The audit after an edit."""
    project.replace(name, *pairs)
    return project.reloader.audit()


def frozen(function: types.FunctionType) -> Callable[[], types.FunctionType]:
    """Makes a function of the code that this one has now."""
    code, names, closure = function.__code__, function.__globals__, function.__closure__
    return lambda: types.FunctionType(code, names, code.co_name, None, closure)


CLOSURES = """\
def make():
    kind = "cosine"
    def factor(step): return step / 10
    return factor
"""


def test_nothing_is_told_where_all_runs_the_code_of_its_file(project: Project) -> None:
    module = project.load(
        "audit_mod", f"{CLOSURES}class A:\n    x = 1\n    def f(self): return 1\n"
    )
    held, bound = module.make(), module.A().f
    audit = edit(project, "audit_mod", ("step / 10", "step / 20"), ("x = 1", "x = 2"))
    assert audit.ok, audit
    assert audit.num_looked_at >= 3
    assert "all run the code of their files" in str(audit)
    assert (held(10), bound()) == (0.5, 1)


@pytest.mark.long
def test_a_closure_with_old_code_is_told_with_its_maker_and_its_version(project: Project) -> None:
    module = project.load("audit_mod", CLOSURES)
    old = frozen(module.make())
    prepared = project.prepare(audit_mod=CLOSURES.replace("/ 10", "/ 20"))
    prepared.label_before = "generation 4"
    prepared.commit()
    held = [old(), old(), old()]
    audit = project.reloader.audit()
    assert audit.stale == [
        "3 live closures of `audit_mod.make` run the code of generation 4 (factor, audit_mod.py:3)"
    ]
    assert not audit.ok
    del held


def test_old_lines_are_told_as_such(project: Project) -> None:
    module = project.load("audit_mod", CLOSURES)
    old = frozen(module.make())
    project.replace("audit_mod", ("def make", "# one\n# two\ndef make"))
    held = old()
    (finding,) = project.reloader.audit().findings
    assert (finding.kind, finding.count) == ("lines", 1)
    assert "says the lines of an earlier version in tracebacks" in finding.text
    del held


@pytest.mark.parametrize(
    "keep",
    [
        lambda function: functools.partial(function, 1),
        lambda function: types.MethodType(function, object()),
        lambda function: {"hook": [(function,)]},
        lambda function: property(function),
        lambda function: functools.lru_cache(function),
    ],
    ids=["partial", "bound_method", "containers", "property", "native_wrapper"],
)
def test_old_functions_are_found_wherever_they_are_held(
    project: Project, keep: Callable[[Any], Any]
) -> None:
    module = project.load("audit_mod", "def f(x):\n    return x\n")
    old = frozen(module.f)
    project.replace("audit_mod", ("return x", "return -x"))
    held = keep(old())
    (text,) = project.reloader.audit().stale
    assert text.startswith("1 live function `audit_mod.f` runs the code of an earlier version")
    del held
    assert project.reloader.audit().ok


def test_a_function_of_which_the_definition_is_gone(project: Project) -> None:
    module = project.load("audit_mod", "def f():\n    return 1\nX = 1\n")
    held = [module.f]
    audit = edit(project, "audit_mod", ("def f():\n    return 1\n", ""))
    assert "in no file any more" in audit.stale[0]
    held.clear()
    assert project.reloader.audit().ok, "the undo log holds it, and nobody else"


def test_what_a_reload_leaves_behind_is_not_told_before_it_is_collected(project: Project) -> None:
    project.load(
        "audit_mod",
        """
        import enum, functools
        class A:
            x = 1
            def f(self): return super().__init__
        class B(A):
            def g(self): return [A, B]
        class E(enum.Enum):
            ONE = 1
            def twice(self): return self.value * 2
        def deco(f):
            @functools.wraps(f)
            def w(*args): return f(*args)
            return w
        @deco
        def h(): return E.ONE
        """,
    )
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            audit = edit(
                project, "audit_mod", (f"x = {number + 1}", f"x = {number + 2}"),
                ("ONE = ", "ONE = 1 + "), ("return f(*args)", "return f(*args) or 0"),
            )  # fmt: skip
            assert audit.ok, audit
    finally:
        gc.enable()


def test_a_suspended_generator_and_a_running_frame_are_told_and_fine(project: Project) -> None:
    module = project.load("audit_mod", "def numbers():\n    yield 1\n    yield 2\n")
    held = module.numbers()
    next(held)
    audit = edit(project, "audit_mod", ("yield 2", "yield 3"))
    assert audit.ok
    assert audit.kept == [
        "`audit_mod.numbers` is still running code of an earlier version, in which it ends"
    ]


def test_a_function_that_looks_names_up_in_a_trial(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project.load("audit_mod", "K = 1\nKEPT = []\ndef keep(f):\n    KEPT.append(f)\n")
    monkeypatch.setattr("monarch_reload.adopt.rehome", lambda function, namespace: None)
    project.edit("audit_mod", project.path("audit_mod").read_text() + "keep(lambda: K)\n")
    assert len(module.KEPT) == 1
    assert "in what is left of a trial" in project.reloader.audit().stale[0]


def test_a_function_that_exec_made_has_the_values_of_a_fresh_one(project: Project) -> None:
    module = project.load(
        "audit_mod",
        """
        def method(limit):
            names = {"limit": limit}
            exec("def check(self, v): return v <= limit", names)
            return names["check"]
        class A:
            check = method(10)
        """,
    )
    project.replace("audit_mod", ("method(10)", "method(20)"))
    made = module.A.__dict__["check"]
    made.__globals__["limit"] = 20
    assert project.reloader.audit().ok
    made.__globals__["limit"] = 10
    audit = project.reloader.audit()
    if audit.stale:  # else a new function took the place of this one
        assert "has limit = 10; a fresh import gives 20" in audit.stale[0]


def test_a_class_that_something_holds_beside_the_one_of_its_name(project: Project) -> None:
    text = "class A:\n    x = 1\n    def f(self): return 1\n"
    module = project.load("audit_mod", text)
    namespace = vars(module)
    live = module.A
    exec(compile(text, str(project.path("audit_mod")), "exec"), namespace)
    copy, namespace["A"] = module.A, live
    held = [copy()]
    audit = edit(project, "audit_mod", ("x = 1", "x = 2"))
    assert "1 instance is of a class `audit_mod.A` that is not the one of that name" in str(audit)
    held.clear()
    held.append([copy])
    del copy
    assert "something holds a class `audit_mod.A`" in str(project.reloader.audit())
    held.clear()
    assert project.reloader.audit().ok


def test_instances_of_a_module_whose_file_is_gone(project: Project) -> None:
    module = project.load("audit_mod", "class Net:\n    def go(self): return 1\n")
    path = project.path("audit_mod")
    nets = [module.Net(), module.Net()]
    path.unlink()
    project.reloader.reload([path])
    assert project.reloader.audit().stale == [
        "2 instances of `audit_mod.Net` are alive, and no file has that class any more"
    ]
    nets.clear()
    assert project.reloader.audit().ok
    project.write("audit_mod", "class Net:\n    def go(self): return 2\n")
    project.reloader.reload([path])
    nets.append(module.Net())
    assert project.reloader.audit().ok
    assert nets[0].go() == 2


def test_a_changed_default_is_told_and_kept_by_design(project: Project) -> None:
    module = project.load(
        "audit_mod",
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Cfg:
            smooth: float = 0.0
            name: str = "a"
        """,
    )
    held = [module.Cfg(), module.Cfg(smooth=5.0)]
    audit = edit(project, "audit_mod", ("0.0", "0.1"))
    assert audit.ok
    assert audit.kept == ["1 instance of audit_mod.Cfg keeps smooth = 0.0; new ones have 0.1"]
    assert project.reloader.audit().ok
    del held


PYDANTIC = """
from pydantic import BaseModel
class Leaf(BaseModel):
    z: int = 0
class Node(BaseModel):
    kid: Leaf
"""


@pytest.mark.long
def test_a_validator_that_has_the_fields_of_another_model_as_they_were(project: Project) -> None:
    fields = pytest.importorskip("pydantic.fields")
    module = project.load("audit_mod", f"{PYDANTIC}RATE = 1\n")
    assert edit(project, "audit_mod", ("RATE = 1", "RATE = 2")).ok
    # No edit comes to this: it takes a new process.
    module.Leaf.model_fields["z"] = fields.FieldInfo(annotation=str, default="")
    module.Leaf.model_rebuild(force=True)
    assert module.Leaf(z="new").z == "new"
    with pytest.raises(ValueError, match="valid integer"):
        module.Node(kid={"z": "new"})
    told = "the validator of `audit_mod.Node` has the fields of `audit_mod.Leaf` as they were"
    assert project.reloader.audit().stale == [told]
    module.Node.model_rebuild(force=True)
    assert project.reloader.audit().ok


def test_a_validator_that_holds_the_class_of_a_trial(project: Project) -> None:
    pydantic = pytest.importorskip("pydantic")
    text = (
        "from pydantic import BaseModel\n"
        "class Cfg(BaseModel):\n    lr: float = 1.0\n    def f(self): return 1\n"
    )
    module = project.load("audit_mod", text)
    live = module.Cfg
    exec(text, vars(module))
    held, vars(module)["Cfg"] = pydantic.TypeAdapter(module.Cfg), live
    project.replace("audit_mod", ("return 1", "return 2"))
    assert any("a class `audit_mod.Cfg`" in text for text in project.reloader.audit().stale)
    del held


def test_a_struct_that_keeps_its_defaults_in_native_code(project: Project) -> None:
    module = project.load("audit_mod", "import msgspec\nclass S(msgspec.Struct):\n    v: int = 0\n")
    try:
        project.replace("audit_mod", ("v: int = 0", "v: int = 5"))
    except NeedsRespawn:
        return
    if module.S().v == 0:
        assert "__struct_defaults__ = (0,); a fresh import gives (5,)" in str(
            project.reloader.audit()
        )
    else:
        assert project.reloader.audit().ok


def test_attrs_methods_that_keep_an_old_function(project: Project) -> None:
    pytest.importorskip("attrs")
    module = project.load(
        "audit_mod",
        """
        import attrs
        @attrs.define
        class A:
            v: int = attrs.field(default=1, converter=lambda x: x + 1)
        """,
    )
    names = module.A.__init__.__globals__
    key = next(name for name in names if "converter" in name)
    old = frozen(names[key])
    project.replace("audit_mod", ("x + 1", "x + 2"))
    module.A.__init__.__globals__[key] = old()
    assert "`audit_mod." in project.reloader.audit().stale[0]
    assert "earlier version" in project.reloader.audit().stale[0]


def test_a_module_that_was_loaded_unseen(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    sys.path.insert(0, str(outside))
    try:
        (outside / "audit_unseen.py").write_text("X = 1\n")
        importlib.import_module("audit_unseen")
        audit = project.reloader.audit([outside / "audit_unseen.py"])
        assert "module `audit_unseen` was loaded from" in audit.stale[0]
    finally:
        sys.path.remove(str(outside))
        del sys.modules["audit_unseen"]


def test_an_undone_reload_leaves_a_clean_audit(project: Project) -> None:
    module = project.load(
        "audit_mod", f"{CLOSURES}class A:\n    x = 1\n    def f(self): return 1\n"
    )
    held = module.make(), module.A()
    report = project.replace("audit_mod", ("step / 10", "step / 20"), ("x = 1", "x = 2"))
    report.undo()
    assert project.reloader.audit().ok
    assert held[0](10) == 1.0


def test_a_frozen_dataclass_is_made_again_when_its_default_is_edited(project: Project) -> None:
    project.load(
        "audit_consts",
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Cfg:
            smooth: float = 0.0
            def twice(self): return self.smooth * 2
        @dataclasses.dataclass
        class State:
            rate: float = 0.0
        CFG = Cfg()
        BOTH = (CFG, Cfg(smooth=2.0))
        STATE = State()
        """,
    )
    task = project.load(
        "audit_task",
        "import audit_consts\nfrom audit_consts import CFG, STATE\nX = CFG.smooth\n"
        "def loss(): return CFG.smooth, audit_consts.BOTH[0].smooth, audit_consts.BOTH[1].smooth\n",
    )
    kept = [task.CFG]
    audit = edit(project, "audit_consts", ("smooth: float = 0.0", "smooth: float = 0.1"))
    assert (task.loss(), task.X) == ((0.1, 0.1, 2.0), 0.1)
    assert audit.ok
    assert audit.kept == ["1 instance of audit_consts.Cfg keeps smooth = 0.0; new ones have 0.1"]
    assert type(kept[0]) is type(task.CFG)

    made = task.CFG
    edit(project, "audit_consts", ("self.smooth * 2", "self.smooth * 3"))
    assert (task.CFG is made, made.twice() == 0.1 * 3) == (True, True)
    audit = edit(project, "audit_consts", ("rate: float = 0.0", "rate: float = 0.5"))
    assert task.STATE.rate == 0.0, "it may have been changed since: it is state"
    assert audit.kept == [
        "audit_consts.STATE, audit_task.STATE keeps rate = 0.0; new ones have 0.5"
    ]


ENUM = "import enum\nclass E(enum.Enum):\n    A = 3\n    B = 4\n"


def test_members_of_an_enum_that_is_gone_are_told_while_something_holds_them(
    project: Project,
) -> None:
    gc.disable()
    try:
        module = project.load("audit_mod", f"{ENUM}X = 1\n")
        held = [module.E.A]
        assert "class `audit_mod.E`" not in str(edit(project, "audit_mod", ("X = 1", "X = 2")))
        audit = edit(project, "audit_mod", (ENUM, "import enum\n"), ("X = 2", "X = 3"))
        assert audit.stale == [
            "2 instances of `audit_mod.E` are alive, and no file has that class any more"
        ]
        # They hold each other, and nothing else holds them; they are not yet collected.
        held.clear()
        audit = project.reloader.audit()
        assert audit.ok, audit
    finally:
        gc.enable()


def test_a_closure_whose_maker_is_gone_is_told_as_gone_where_others_have_its_name(
    project: Project,
) -> None:
    module = project.load("audit_mod", f"{CLOSURES}def other():\n    def factor(): pass\n")
    held = module.make()
    audit = edit(project, "audit_mod", (CLOSURES, ""))
    assert [(one.kind, one.name) for one in audit.findings] == [("gone", "audit_mod.make")]
    del held


def test_an_audit_of_much_that_is_old_lets_other_threads_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project.load("audit_mod", CLOSURES)
    old = frozen(module.make())
    asked: list[int] = []
    get_referrers = gc.get_referrers

    def counted(*things: Any) -> list[Any]:
        asked.append(len(things))
        return get_referrers(*things)

    project.replace("audit_mod", ("/ 10", "/ 20"))
    held = [old() for _ in range(60)]
    monkeypatch.setattr(gc, "get_referrers", counted)
    pauses: list[int] = []
    audit = project.reloader.audit(pause=lambda: pauses.append(len(asked)))
    assert audit.findings[0].count == len(held)
    assert max(asked) <= 25 < sum(asked)
    assert set(range(len(asked))) <= set(pauses)  # before each


def test_an_audit_looks_at_all_objects_once_and_holds_none_while_others_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.load("audit_mod", f"{CLOSURES}X = 1\n")
    project.replace("audit_mod", ("/ 10", "/ 20"))
    looks: list[None] = []
    get_objects = gc.get_objects

    def counted(*args: Any, **named: Any) -> list[Any]:
        looks.append(None)
        return get_objects(*args, **named)

    monkeypatch.setattr(gc, "get_objects", counted)
    step = [lambda: None for _ in range(5_000)]  # what a step makes, and lets go
    ends = [weakref.ref(one) for one in step]
    held_after: list[int] = []

    def pause() -> None:
        step.clear()
        held_after.append(sum(one() is not None for one in ends))

    audit = project.reloader.audit(pause=pause)
    assert audit.ok, audit
    assert len(looks) == 1
    assert held_after[1:]
    assert set(held_after[1:]) == {0}


@pytest.mark.long  # What the process of the tests has imported is looked at, all of it.
@pytest.mark.parametrize("when", ["before the first edit", "before the audit"])
def test_what_gc_freeze_has_hidden_is_found(project: Project, when: str) -> None:
    module = project.load("audit_mod", CLOSURES)
    follows, old = module.make(), frozen(module.make())
    held = [old()]
    hidden = gc.get_freeze_count()
    if when == "before the first edit":
        gc.freeze()
    project.replace("audit_mod", ("/ 10", "/ 20"))
    stale = old()
    if when == "before the audit":
        gc.freeze()
    assert follows(10) == 0.5
    (text,) = project.reloader.audit().stale
    assert text.startswith("1 live closure of `audit_mod.make`"), "the one made later"
    assert held[0](10) == 0.5
    assert gc.get_freeze_count() <= hidden
    del stale


def test_what_is_frozen_stays_so_where_the_edited_module_is_not(project: Project) -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    project.load("audit_mod", CLOSURES)
    project.replace("audit_mod", ("/ 10", "/ 20"))
    assert project.reloader.audit().ok
    assert gc.get_freeze_count() > count * 0.9


@pytest.mark.parametrize("star", ["", "*, "], ids=["positional", "keyword"])
def test_closures_that_keep_a_default_which_the_source_has_no_more(
    project: Project, star: str
) -> None:
    text = f"def make(k):\n    def inner(x, {star}rate=10):\n        return x * rate * k\n"
    module = project.load("audit_mod", f"{text}    return inner\nX = 1\n")
    held, own = [module.make(1), module.make(2)], module.make(3)
    if star:
        own.__kwdefaults__ = {"rate": 7}
    else:
        own.__defaults__ = (7,)
    assert edit(project, "audit_mod", ("X = 1", "X = 2")).ok
    audit = edit(project, "audit_mod", ("rate=10", "rate=20"))
    if held[0](1) == 20:
        assert audit.ok
        return
    assert audit.stale == [
        "2 live closures of `audit_mod.make` keep the default rate = 10; new ones have 20"
        " (inner, audit_mod.py:2)"
    ], "what the program has set itself is its own"
    assert own(1) == 21
    held.clear()
    assert project.reloader.audit().ok


def test_a_cache_of_what_calls_an_edited_function_is_told_once(project: Project) -> None:
    project.load("audit_low", "def scale(x):\n    return x * 2\ndef other(x):\n    return x\n")
    module = project.load(
        "audit_mod",
        """
        import functools
        import audit_low
        from audit_low import other
        def between(x):
            return audit_low.scale(x)
        @functools.lru_cache
        def far(x):
            return [between(one) for one in range(x)]
        @functools.cache
        def near(x):
            return other(x)
        @functools.cache
        def empty(x):
            return audit_low.scale(x)
        """,
    )
    module.far(3), module.near(3)
    assert edit(project, "audit_low", ("def scale", "\n\ndef scale")).kept == []
    audit = edit(project, "audit_low", ("x * 2", "x * 3"))
    told = "the cache of `audit_mod.far` may hold results of old code: it calls `audit_low.scale`"
    assert (audit.ok, audit.kept) == (True, [told])
    assert edit(project, "audit_low", ("return x\n", "return -x\n")).kept == [
        "the cache of `audit_mod.near` may hold results of old code: it calls `audit_low.other`"
    ]


@pytest.mark.parametrize("base", ["enum.Enum", "object"])
@pytest.mark.parametrize("goes", ["file and import", "module as well"])
def test_a_class_whose_file_goes_with_its_import(project: Project, base: str, goes: str) -> None:
    project.load("audit_kind", f"import enum\nclass E({base}):\n    A = 1\n    def f(self): pass\n")
    module = project.load("audit_task", "from audit_kind import E\nHELD = []\nX = E\n")
    held = module.E.A if base != "object" else module.E()
    path = project.path("audit_kind")
    path.unlink()
    project.path("audit_task").write_text("HELD = []\n")
    project.reloader.reload([path, project.path("audit_task")])
    if goes == "module as well":
        del sys.modules["audit_kind"]
    (text,) = project.reloader.audit().stale
    assert "`audit_kind.E`" in text
    assert text.endswith("no file has that class any more")
    del held


def test_a_coroutine_that_is_in_flight_is_told(project: Project) -> None:
    module = project.load(
        "audit_mod",
        """
        import asyncio
        async def inner():
            await asyncio.sleep(0)
            return 1
        async def outer():
            return await inner()
        """,
    )
    held = module.outer()
    held.send(None)
    audit = edit(
        project, "audit_mod", ("return 1", "return 2"), ("await inner()", "1 + await inner()")
    )
    assert audit.ok
    assert sorted(audit.kept) == [
        f"`audit_mod.{name}` is still running code of an earlier version, in which it ends"
        for name in ("inner", "outer")
    ]
    held.close()


def test_a_closure_follows_when_its_maker_is_renamed(project: Project) -> None:
    module = project.load("audit_mod", f"{CLOSURES}X = 1\n")
    held = module.make()
    audit = edit(project, "audit_mod", ("def make", "# it has\n# a new name\ndef make_factor"))
    assert audit.ok, audit
    assert held.__code__.co_firstlineno == 5
    assert edit(project, "audit_mod", ("/ 10", "/ 20")).ok
    assert held(10) == 0.5


def test_of_two_makers_that_go_and_came_nobody_knows_which_is_which(project: Project) -> None:
    one, other = CLOSURES, CLOSURES.replace("make", "also")
    module = project.load("audit_mod", f"{one}{other}X = 1\n")
    held = module.make(), module.also()
    audit = edit(project, "audit_mod", ("def make", "#\ndef first"), ("def also", "def second"))
    assert [finding.kind for finding in audit.findings] == ["gone", "gone"], audit
    del held


def test_a_class_without_a_module_ends_no_audit(project: Project) -> None:
    """`type()` where no module is, and torch's classes in C, leave `__module__` out."""
    module = project.load("audit_mod", "def f():\n    return 1\n")
    space: dict[str, Any] = {}
    exec("Bare = type('Bare', (), {})", space)
    assert "__module__" not in vars(space["Bare"])
    assert edit(project, "audit_mod", ("return 1", "return 2")).ok
    assert module.f() == 2


def test_a_closure_that_was_pickled_by_value_is_told(project: Project) -> None:
    """As one that was sent to an actor: it has no file, and a namespace of its own."""
    cloudpickle = pytest.importorskip("cloudpickle")
    module = project.load("audit_mod", CLOSURES)
    held = cloudpickle.loads(cloudpickle.dumps(module.make()))
    audit = edit(project, "audit_mod", ("step / 10", "step / 20"))
    assert held(10) == 1.0
    assert len(audit.stale) == 1
    assert "live closure of `audit_mod.make` runs the code of an earlier version" in audit.stale[0]
    del held
    assert project.reloader.audit().ok


@pytest.mark.parametrize("how", ["spec", "runpy"])
def test_a_file_that_was_run_by_its_path(project: Project, how: str) -> None:
    project.load("audit_mod", "def f():\n    return 1\n")
    path = project.write("plugin", "def g():\n    return 1\ndef h():\n    return 1\n")
    if how == "runpy":
        held = runpy.run_path(str(path))["g"]
    else:
        spec = importlib.util.spec_from_file_location("nobody_knows_it", path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        held = made.g
    project.replace("audit_mod", ("return 1", "return 2"))
    path.write_text(path.read_text().replace("def g():\n    return 1", "def g():\n    return 2"))
    assert project.reloader.audit([path]).stale == [
        f"1 function of {path}, which was run by its path, runs its old code"
    ]
    assert held() == 1


def _double(value: int) -> int:
    return importlib.import_module("audit_mod").double(value)  # type: ignore[no-any-return]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_that_began_before_an_edit_are_told_and_fine(project: Project) -> None:
    project.load("audit_mod", "def double(x):\n    return x * 2\n")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_double, (1,)) == 2
        audit = edit(project, "audit_mod", ("x * 2", "x * 3"))
        assert pool.apply(_double, (1,)) == 2, "it has the code that it began with"
        assert audit.ok
        (text,) = audit.kept
        assert text.startswith("1 process that this one has started has the code of before")
        pool.terminate()
        pool.join()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_double, (1,)) == 3
        assert project.reloader.audit().kept == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_data_loader_are_called_that(project: Project) -> None:
    data = pytest.importorskip("torch.utils.data")
    project.load("audit_mod", "def double(x):\n    return x * 2\n")
    loader = data.DataLoader(range(8), num_workers=2, persistent_workers=True)
    handler = signal.getsignal(signal.SIGCHLD)
    batches = iter(loader)
    try:
        next(batches)
        audit = edit(project, "audit_mod", ("x * 2", "x * 3"))
    finally:
        batches._shutdown_workers()
        signal.signal(signal.SIGCHLD, handler)  # Torch's was that of the workers.
    assert audit.kept == [
        "2 workers of a DataLoader have the code of before until the loader makes new ones"
    ]
