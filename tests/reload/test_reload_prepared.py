"""Prepare, commit, abort, undo, and what the errors say."""

from __future__ import annotations

import importlib
import linecache
import pickle
import sys
import traceback

import pytest

from monarch_reload import Reloader, ReloadError, ReloadReport

from .conftest import Project

BASE = """
import functools
C = 1
LOG = []

@functools.lru_cache
def cached():
    return C

def f():
    return "old"

class A:
    limit = 3
    seen = []

    def m(self):
        return "old"
"""
NEW = (
    BASE.replace("C = 1", "C = 2")
    .replace('"old"', '"new"')
    .replace("limit = 3", "limit = 4\n    extra = 5")
)


def test_prepare_changes_nothing_and_abort_leaves_no_trace(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    before, of_class = dict(vars(module)), dict(vars(module.A))
    modules, meta_path = set(sys.modules), list(sys.meta_path)
    code = module.f.__code__
    prepared = project.prepare(
        tx_mod="import helper_mod\n" + NEW + "\nLOG.append(helper_mod.H)\nclass B(A): pass\n",
        helper_mod="H = 1\n",
    )
    for _ in range(2):
        assert dict(vars(module)) == before
        assert dict(vars(module.A)) == of_class
        assert module.f.__code__ is code
        assert module.LOG == []
        prepared.abort()
    assert set(sys.modules) == modules
    assert sys.meta_path == meta_path
    assert module.A.__subclasses__() == []
    with pytest.raises(ReloadError, match="prepare again"):
        prepared.commit()


def test_commit_reports_and_undo_restores(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    a, f, cls = module.A(), module.f, module.A
    cls.seen.append("state")
    assert module.cached() == 1
    before, of_class = dict(vars(module)), dict(vars(cls))
    report = project.prepare(tx_mod=NEW + "\nD = C * 10\n").commit()
    assert report.modules == ["tx_mod"]
    assert report.functions == ["tx_mod.A.m", "tx_mod.f"]
    assert report.classes == ["tx_mod.A"]
    assert [entry.split(" ", 1)[1] for entry in report.reran] == ["C = 2", "D = C * 10"]
    assert (f(), a.m(), cls.limit, cls.extra, module.D, module.cached()) == (
        "new",
        "new",
        4,
        5,
        20,
        2,
    )
    assert cls.seen == ["state"]
    report.undo()
    assert (f(), a.m(), cls.limit, module.cached()) == ("old", "old", 3, 1)
    assert dict(vars(module)) == before
    assert dict(vars(cls)) == of_class
    with pytest.raises(RuntimeError):
        report.undo()
    # The old source is what runs again, so the same edit is an edit again.
    project.prepare(tx_mod=NEW).commit()
    assert (f(), cls.limit) == ("new", 4)


def test_failure_inside_commit_rolls_back(project: Project) -> None:
    module = project.load(
        "tx_mod",
        """
        class Meta(type):
            pass
        class Picky:
            def __set_name__(self, owner, name):
                if armed and owner.__name__ in owners: raise RuntimeError("refused")
                owners.append(owner.__name__)
        armed = False
        owners = []
        class A(metaclass=Meta):
            def m(self): return 1
        def f(): return 1
        """,
    )
    module.armed = True
    a, before = module.A(), dict(vars(module))
    text = project.path("tx_mod").read_text().replace("return 1", "return 2")
    prepared = project.prepare(tx_mod=text.replace("def m(", "p = Picky()\n    def m("))
    module.owners.append("A")
    with pytest.raises(ReloadError, match="refused") as caught:
        prepared.commit()
    assert caught.value.phase == "commit"
    assert (a.m(), module.f()) == (1, 1)
    assert not hasattr(module.A, "p")
    assert dict(vars(module)) == before


def test_a_later_commit_makes_an_older_prepare_void(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    older = project.prepare(tx_mod=BASE.replace('"old"', '"older"'))
    report = project.prepare(tx_mod=NEW).commit()
    with pytest.raises(ReloadError, match="prepare again"):
        older.commit()
    assert module.f() == "new"
    project.prepare(tx_mod=BASE).commit()
    with pytest.raises(RuntimeError, match="another reload"):
        report.undo()


def test_two_syntax_errors_in_one_error(project: Project) -> None:
    project.load("one_mod", "x = 1\n")
    project.load("two_mod", "y = 1\n")
    with pytest.raises(ReloadError) as caught:
        project.prepare(one_mod="x = (\n", two_mod="y = 1\n  z = 2\n", never_loaded="import = 3\n")
    assert [error.path for error in caught.value.errors] == [
        str(project.path(name)) for name in ("one_mod", "two_mod", "never_loaded")
    ]
    text = str(caught.value)
    assert "never_loaded.py:1\n    import = 3\n           ^\nSyntaxError" in text
    assert text.endswith("Nothing changed.")


def test_error_survives_pickling(project: Project) -> None:
    project.load("one_mod", "x = 1\n")
    with pytest.raises(ReloadError) as caught:
        project.prepare(one_mod="x = 1 +\n", two_mod="(\n")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert vars(copy.errors[0]) == vars(caught.value.errors[0])
    assert (copy.phase, copy.line, copy.path) == ("compile", 1, str(project.path("one_mod")))


def test_report_survives_pickling(project: Project) -> None:
    project.load("tx_mod", BASE)
    report = project.prepare(tx_mod=NEW).commit()
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report
    with pytest.raises(RuntimeError):
        copy.undo()


def test_runtime_error_names_the_line_in_a_file_not_on_disk_yet(project: Project) -> None:
    project.load("tx_mod", BASE)
    with pytest.raises(ReloadError) as caught:
        project.prepare(tx_mod=BASE + "\ndef boom():\n    return {}['k']\n\nX = boom()\n")
    assert caught.value.text == "    return {}['k']"
    assert "KeyError" in caught.value.traceback
    assert "monarch_sync" not in caught.value.traceback.splitlines()[1]


def test_dependent_that_fails_is_found_in_prepare(project: Project) -> None:
    project.load("tx_mod", BASE)
    user = project.load("user_mod", "from tx_mod import f\ndef use():\n    return f()\n")
    with pytest.raises(ReloadError, match="user_mod") as caught:
        project.prepare(tx_mod=BASE.replace("def f()", "def g()"))
    assert "ImportError" in caught.value.message
    assert user.use() == "old"


def test_keep(project: Project) -> None:
    source = "__reload_keep__ = ('weights', 'later')\nSIZE = 1\nweights = [SIZE]\n"
    module = project.load("keep_mod", source)
    module.weights.append("trained")
    project.edit("keep_mod", source.replace("SIZE = 1", "SIZE = 2") + "later = SIZE\n")
    assert (module.SIZE, module.weights, module.later) == (2, [1, "trained"], 2)
    project.edit("keep_mod", "__reload_keep__ = ('weights',)\nSIZE = 3\n")
    assert (module.SIZE, module.weights) == (3, [1, "trained"])
    assert not hasattr(module, "later")


def test_names_gone_from_the_source_go(project: Project) -> None:
    module = project.load("gone_mod", "import os\nx = 1\ndef f(): pass\nclass K: pass\n")
    module.from_outside = 1
    project.edit("gone_mod", "y = 1\n")
    assert not {"os", "x", "f", "K"} & vars(module).keys()
    assert (module.y, module.from_outside) == (1, 1)


def test_verdicts(project: Project) -> None:
    project.load("tx_mod", BASE)
    project.load("user_mod", "from tx_mod import C\nD = C + 1\n")
    project.load("dead_mod", "x = 1\n")
    project.load("calm_mod", "def f():\n    return 1\n")
    prepared = project.prepare(
        tx_mod=NEW, dead_mod=None, calm_mod="def f():\n    return 2\n", unknown_mod="x = 1\n"
    )
    actions = {name: verdict.action for name, verdict in prepared.verdicts.items()}
    assert actions == {
        "tx_mod": "rerun",
        "user_mod": "rerun",
        "dead_mod": "unloaded",
        "calm_mod": "patch",
        str(project.path("unknown_mod")): "unloaded",
    }
    assert prepared.verdicts["tx_mod"].classes == ("A",)
    prepared.commit()
    assert sys.modules["dead_mod"].x == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("class A:\n    __slots__ = ('x',)\n", "class A:\n    __slots__ = ('x', 'y')\n", "slots"),
        ("class A: pass\n", "import abc\nclass A(abc.ABC): pass\n", "metaclass"),
        ("class A(dict): pass\n", "class A(list): pass\n", "layout"),
        ("class B: pass\nclass A: pass\n", "class B: pass\nclass A(B): pass\n", "object"),
    ],
)
def test_what_cannot_be_patched_is_found_in_prepare(
    project: Project, old: str, new: str, reason: str
) -> None:
    module = project.load("fixed_mod", old + "def f():\n    return 1\n")
    cls = module.A
    text = new + "def f():\n    return 2\n"
    with pytest.raises(ReloadError, match=reason):
        project.reloader.prepare({project.path("fixed_mod"): text.encode()}, mode="patch")
    prepared = project.prepare(fixed_mod=text)
    verdict = prepared.verdicts["fixed_mod"]
    assert (verdict.action, verdict.classes) == ("respawn", ("A",))
    assert reason in verdict.reason
    assert prepared.needs_respawn
    prepared.commit()
    assert module.f() == 2
    assert module.A is cls


def test_modes_off_and_respawn(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    sources = {project.path("tx_mod"): NEW.encode()}
    off = project.reloader.prepare(sources, mode="off")
    assert off.verdicts == {}
    assert off.commit().modules == []
    respawn = project.reloader.prepare(sources, mode="respawn")
    assert respawn.needs_respawn
    respawn.commit()
    assert module.f() == "old"
    project.reloader.prepare(sources).commit()
    assert module.f() == "new"


def test_new_file_is_importable_from_prepared_code(project: Project) -> None:
    module = project.load("tx_mod", "x = 1\n")
    project.prepare(
        tx_mod="from fresh_mod import g\nZ = 9\n",
        fresh_mod="import tx_mod\ndef g():\n    from tx_mod import Y\n    return Y\n",
    ).abort()
    assert "fresh_mod" not in sys.modules
    with pytest.raises(ReloadError, match="Y"):
        project.prepare(
            tx_mod="from fresh_mod import g\nx = g()\n",
            fresh_mod="def g():\n    from tx_mod import Y\n    return Y\n",
        )
    assert "fresh_mod" not in sys.modules
    report = project.prepare(
        tx_mod="Y = 7\nfrom fresh_mod import g\nx = g()\n",
        fresh_mod="def g():\n    from tx_mod import Y\n    return Y\n",
    ).commit()
    assert module.x == 7
    assert module.g.__builtins__ is vars(__import__("builtins"))
    assert sys.modules["fresh_mod"].g is module.g
    report.undo()
    assert "fresh_mod" not in sys.modules
    assert module.x == 1


def test_running_source_is_remembered_from_the_import(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    module.LOG.append("kept")
    path = project.write("tx_mod", NEW)
    project.reloader.reload([path])
    assert (module.C, module.LOG) == (2, ["kept"])


def test_module_loaded_before_the_reloader(project: Project) -> None:
    project.reloader.close()
    module = project.load("early_mod", BASE)
    project.write("early_mod", NEW)  # before anybody looked
    late = Reloader([project.root])
    try:
        late.reload([project.write("early_mod", NEW.replace('"new"', '"newest"'))])
        assert (module.C, module.f(), module.A().m()) == (2, "newest", "newest")
    finally:
        late.close()


def test_tracebacks_show_new_lines(project: Project) -> None:
    source = "def first():\n    return 1\n\ndef fails():\n    raise ValueError('here')\n"
    module = project.load("trace_mod", source)
    fails = module.fails
    project.edit("trace_mod", "# a line\n# and one more\n" + source)
    with pytest.raises(ValueError, match="here") as caught:
        fails()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (7, "raise ValueError('here')")
    linecache.checkcache()


def test_main_guard_never_runs_again(project: Project) -> None:
    source = "RAN = []\nC = 1\nif __name__ == '__main__':\n    RAN.append(C)\n"
    module = project.load("script_mod", source)
    module.__name__ = "script_mod"
    project.edit("script_mod", source.replace("C = 1", "C = 2").replace("append(C)", "append(-C)"))
    assert (module.C, module.RAN) == (2, [])


def test_reload_of_the_same_text_does_nothing(project: Project) -> None:
    project.load("tx_mod", BASE)
    assert project.edit("tx_mod", BASE) == ReloadReport(
        seconds=pytest.approx(0, abs=1), prepare_seconds=pytest.approx(0, abs=1)
    )


def test_packages_and_relative_imports(project: Project) -> None:
    (project.root / "pkg").mkdir()
    project.write("pkg", "from .core import C\n")
    project.write("pkg.core", "C = 1\ndef f():\n    return 'old'\n")
    user = project.load(
        "pkg.user",
        """
        import pkg.core
        from . import core, C
        from .core import f as g
        D = (core.C, C, pkg.core.C)
        """,
    )
    project.edit("pkg.core", "C = 5\ndef f():\n    return 'new'\n")
    assert user.D == (5, 5, 5)
    assert user.g() == "new"
    assert user.core is sys.modules["pkg.core"]
    assert user.pkg is sys.modules["pkg"]
    assert sys.modules["pkg"].C == 5


def test_reload_with_importlib_still_works(project: Project) -> None:
    module = project.load("tx_mod", BASE)
    project.write("tx_mod", NEW)
    importlib.reload(module)
    assert module.C == 2
    project.edit("tx_mod", NEW.replace("C = 2", "C = 3"))
    assert module.cached() == 3
