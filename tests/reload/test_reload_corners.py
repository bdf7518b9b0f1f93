"""Corners where a reload could go quietly wrong."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import signal
import sys
import textwrap
import threading

import pytest

from monarch_reload import Reloader, ReloadError

from .conftest import Project


def test_instance_made_by_the_new_code_is_of_the_live_class(project: Project) -> None:
    module = project.load("mk_mod", "class A:\n    x = 1\n    def m(self):\n        return 'old'\n")
    cls = module.A
    project.edit(
        "mk_mod",
        """
        class A:
            x = 2
            def m(self):
                return 'new'
        class Slotted:
            __slots__ = ("a",)
            def m(self):
                return super().__repr__()
        shared = A()
        pair = (A, A.m, [A], {A: A})
        s = Slotted()
        """,
    )
    assert module.A is cls
    assert type(module.shared) is cls
    assert (module.shared.m(), module.shared.x) == ("new", 2)
    assert module.pair[0] is cls
    assert module.pair[2] == [cls]
    assert module.pair[3] == {cls: cls}
    assert "Slotted" in module.s.m()
    project.replace("mk_mod", ("super().__repr__()", "'slots'"), ("x = 2", "x = 3"))
    assert (module.s.m(), module.shared.x) == ("slots", 3)


def test_star_imports(project: Project) -> None:
    project.load("star_mod", "C = 1\n_p = 1\ndef f():\n    return C\n")
    user = project.load("user_mod", "from star_mod import *\nD = C + 1\nE = f()\n")
    project.edit("star_mod", "C = 2\n_p = 1\ndef f():\n    return C\n")
    assert (user.C, user.D, user.E, user.f()) == (2, 3, 2, 2)
    assert not hasattr(user, "_p")


def test_definitions_inside_blocks_keep_their_identity(project: Project) -> None:
    source = """
    try:
        import tomllib
    except ImportError:
        tomllib = None
    if True:
        class A:
            def m(self):
                return "old"
        def f():
            return "old"
    else:
        def f():
            return "never"
    """
    module = project.load("if_mod", source)
    a, f, cls = module.A(), module.f, module.A
    project.replace("if_mod", ('"old"', '"new"'))
    assert (a.m(), f()) == ("new", "new")
    assert (module.A, module.f) == (cls, f)


def test_names_deleted_after_use(project: Project) -> None:
    source = """
        base = 1
        import os as tool
        x = base + 1
        found = tool.sep
        del base, tool
        kept = []
    """
    module = project.load("del_mod", source)
    kept = module.kept
    project.edit(
        "del_mod", source.replace("base + 1", "base + 10").replace("tool.sep", "tool.sep * 2")
    )
    assert (module.x, module.kept) == (11, kept)
    assert not hasattr(module, "base")


@pytest.mark.parametrize("decoration", ["plain", "named_tuple", "generic", "protocol", "error"])
def test_special_classes(project: Project, decoration: str) -> None:
    head = "from typing import Generic, NamedTuple, Protocol, TypeVar\nT = TypeVar('T')\n"
    base = {
        "plain": "",
        "named_tuple": "(NamedTuple)",
        "generic": "(Generic[T])",
        "protocol": "(Protocol[T])",
        "error": "(Exception)",
    }[decoration]
    body = f"class A{base}:\n    x: int = 1\n    def m(self):\n        return 'old'\n"
    module = project.load("special_mod", head + body + "class B(A):\n    pass\n")
    live, cls = module.B(), module.A
    report = project.replace("special_mod", ("'old'", "'new'"))
    assert live.m() == "new"
    report = project.replace(
        "special_mod", ("x: int = 1", "x: int = 2\n    y: str = 'y'"), ("'new'", "'newer'")
    )
    assert (live.m(), module.B().x, module.A) == ("newer", 2, cls)
    assert cls in type(module.B()).__mro__
    report.undo()
    assert (live.m(), module.B().x) == ("new", 1)


def test_undo_restores_an_enum(project: Project) -> None:
    source = "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\n"
    module = project.load("undo_enum_mod", source)
    members, b = list(module.E), module.E.B
    before = dict(vars(module.E))
    report = project.edit("undo_enum_mod", source.replace("B = 2", "B = 3\n    C = 4"))
    assert [m.value for m in module.E] == [1, 3, 4]
    report.undo()
    assert list(module.E) == members
    assert (b.value, module.E(2)) == (2, b)
    assert dict(vars(module.E)) == before


def test_two_reloaders_at_once(project: Project) -> None:
    other = Reloader([project.root])
    try:
        module = project.load("twice_mod", "def f():\n    return 1\n")
        project.edit("twice_mod", "def f():\n    return 2\n")
        assert module.f() == 2
        assert sorted(name for name, _ in other.loaded()) == ["twice_mod"]
        assert sorted(name for name, _ in project.reloader.loaded()) == ["twice_mod"]
    finally:
        other.close()


def test_two_reloaders_that_try_new_code_at_the_same_time(
    project: Project,
) -> None:
    names = ("tried_here", "tried_there")
    for name in names:
        project.load(name, "X = 1\n")
    before = [atexit.register, signal.signal, threading.Thread.start, importlib.import_module]
    gates = {name: (threading.Event(), threading.Event()) for name in names}
    sys.modules["tried_gates"] = gates  # type: ignore[assignment]
    text = (
        "import sys\nbegun, go_on = sys.modules['tried_gates'][{!r}]\n"
        "X = begun.set(), go_on.wait(60)\n"
    )
    errors: list[BaseException] = []

    def reload(name: str) -> None:
        try:
            with Reloader([project.root]) as reloader:
                reloader.prepare({project.path(name): text.format(name).encode()}).commit()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=reload, args=(name,)) for name in names]
    try:
        threads[0].start()
        assert gates["tried_here"][0].wait(60)
        threads[1].start()
        gates["tried_there"][0].wait(0.2)  # it may have to wait for the first one
        gates["tried_here"][1].set()
        threads[0].join(60)
        gates["tried_there"][1].set()
        threads[1].join(60)
    finally:
        del sys.modules["tried_gates"]
    assert errors == []
    assert before == [
        atexit.register,
        signal.signal,
        threading.Thread.start,
        importlib.import_module,
    ]


def test_many_reloaders_do_not_make_imports_slow(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = []

    class Finder:
        def find_spec(self, name: str, path: object, target: object) -> None:
            looked_for.append(name)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    with contextlib.ExitStack() as others:
        for _ in range(9):
            others.enter_context(Reloader([project.root]))
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("not_there_at_all")
    assert len(looked_for) <= 11, "once for each reloader, and once by Python itself"


def test_exit_in_new_code_is_a_refusal(project: Project) -> None:
    module = project.load("exit_mod", "x = 1\n")
    with pytest.raises(ReloadError, match="SystemExit"):
        project.prepare(exit_mod="import fresh_exit\nx = 2\nraise SystemExit(3)\n", fresh_exit="")
    assert module.x == 1
    assert "fresh_exit" not in sys.modules


@pytest.mark.long
def test_threads_see_the_old_code_or_the_new(project: Project) -> None:
    source = """
        class A:
            def m(self, n):
                return (n, 'v0')
        def f(n):
            return A().m(n)
    """
    module = project.load("thread_mod", source)
    stop, seen, failures = threading.Event(), set(), []

    def work() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            try:
                got, version = module.f(n)
                assert got == n
                seen.add(version)
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in range(1, 12):
            extra = f"K = {version}\n" * (version % 2)
            project.edit("thread_mod", textwrap.dedent(source).replace("v0", f"v{version}") + extra)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert seen <= {f"v{version}" for version in range(12)}
    assert module.f(0) == (0, "v11")


def test_module_level_type_annotations_and_future_import(project: Project) -> None:
    source = "from __future__ import annotations\nx: Missing = 1\ndef f(a: Nowhere) -> None: ...\n"
    module = project.load("ann_mod", source)
    before = dict(module.__annotations__)
    prepared = project.prepare(ann_mod=source.replace("= 1", "= 2") + "y: Gone = 3\n")
    assert module.__annotations__ == before
    prepared.commit()
    assert (module.x, module.y) == (2, 3)
    assert module.__annotations__ == {"x": "Missing", "y": "Gone"}
    assert module.f.__annotations__ == {"a": "Nowhere", "return": "None"}


def test_renamed_and_swapped_definitions(project: Project) -> None:
    module = project.load("swap_mod", "def f():\n    return 'f'\ndef g():\n    return 'g'\n")
    f, g = module.f, module.g
    project.edit("swap_mod", "def g():\n    return 'g2'\ndef f():\n    return 'f2'\n")
    assert (f(), g(), module.f, module.g) == ("f2", "g2", f, g)
    project.edit("swap_mod", "def h():\n    return 'h'\ndef f():\n    return h()\n")
    assert f() == "h"
    assert not hasattr(module, "g")


def test_one_file_under_two_names(project: Project) -> None:
    (project.root / "pack").mkdir()
    sys.path.insert(0, str(project.root / "pack"))
    try:
        project.write("pack", "")
        one = project.load("pack.dual_mod", "def f():\n    return 1\n")
        two = importlib.import_module("dual_mod")
        report = project.edit("pack.dual_mod", "def f():\n    return 2\n")
        assert (one.f(), two.f()) == (2, 2)
        assert sorted(report.modules) == ["dual_mod", "pack.dual_mod"]
    finally:
        sys.path.remove(str(project.root / "pack"))


def test_many_files_at_once_follow_each_other(project: Project) -> None:
    low = project.load("low_mod", "C = 1\ndef low():\n    return C\n")
    high = project.load(
        "high_mod",
        """
        import low_mod
        from low_mod import low
        H = low() + low_mod.C
    """,
    )
    project.prepare(
        low_mod="C = 10\nD = 5\ndef low(extra=D):\n    return C + extra\n",
        high_mod="import low_mod\nfrom low_mod import low, D\nH = low() + low_mod.C + D\n",
    ).commit()
    assert (low.low(), high.H, high.D) == (15, 30, 5)
    assert high.low is low.low
    assert high.low.__globals__ is vars(low)
    assert high.low_mod is low


def test_wide_edit_of_a_decorator_elsewhere(project: Project) -> None:
    project.load(
        "deco_mod",
        """
        import functools
        K = 1
        def deco(f):
            @functools.wraps(f)
            def w(*a):
                return f(*a) + K
            return w
        """,
    )
    user = project.load(
        "user_mod",
        """
            from deco_mod import deco
            @deco
            def f(x):
                return x
            class A:
                @deco
                def m(self):
                    return 1
        """,
    )
    f, a = user.f, user.A()
    held = a.m
    project.replace("deco_mod", ("+ K", "* 100 + K"))
    assert (f(1), a.m(), held(), user.f) == (101, 101, 101, f)


def test_new_code_that_collects_garbage(project: Project) -> None:
    source = "import gc\nclass A:\n    x = 1\ndef f():\n    return A.x\nV = 1\n"
    module = project.load("gc_mod", source)
    a, f = module.A(), module.f
    more = """gc.collect()
shared = A()
def g():
    global V
    V += 1
    return V
held = [g, A]
"""
    project.edit("gc_mod", source.replace("x = 1", "x = 2") + more)
    module.V = 10
    assert (a.x, f(), module.held[0](), module.V) == (2, 2, 11, 11)
    assert type(module.shared) is type(a) is module.A is module.held[1]


def test_new_classes_of_an_abort_are_no_subclasses(project: Project) -> None:
    module = project.load("sub_mod", "class A:\n    pass\n")
    project.prepare(sub_mod="class A:\n    pass\nclass B(A):\n    pass\n").abort()
    assert module.A.__subclasses__() == []
