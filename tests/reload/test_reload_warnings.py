"""What an edit will trip over is told with its line, and nothing else is."""

# ruff: noqa: E501

from __future__ import annotations

import ast
import importlib.util
import textwrap
from pathlib import Path

import pytest

from monarch_reload.plan.misfit_calls import Definitions, misfit_calls
from monarch_reload.plan.unbound_names import unbound_names

from .conftest import Project

_BEFORE = "import math\nimport warn_other\nfrom warn_other import two\n\n\n"
_OTHER = "def two(a, b):\n    return a\ndef many(*args, **kwargs):\n    return 0\n"


def _warnings(project: Project, edit: str) -> list[str]:
    project.load("warn_other", _OTHER)
    project.load("warned", f"{_BEFORE}def f():\n    return 1\n")
    report = project.edit("warned", _BEFORE + textwrap.dedent(edit))
    start = f"{project.path('warned')}:"
    assert all(text.startswith(start) for text in report.warnings)
    assert all(f"warning: {text}" in str(report) for text in report.warnings)
    return [text.removeprefix(start) for text in report.warnings]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("def f():\n    return mispelt + 1\n", "7: name 'mispelt' is not defined"),
        ("def f():\n    return [x for _ in y]\n", "7: name 'x' is not defined"),
        ("def f():\n    return lambda: mth.pi\n", "7: name 'mth' is not defined"),
        ("def f():\n    def g():\n        return nope\n    return g\n", "8: name 'nope' is not defined"),
        ("class A:\n    def f(self):\n        return Nope()\n", "8: name 'Nope' is not defined"),
        ("def f():\n    two(1)\n", "7: two() is missing a required argument: 'b'"),
        ("def f():\n    two(1, 2, 3)\n", "7: two() takes 2 positional arguments, not 3"),
        ("def f():\n    two(1, c=2, b=3)\n", "7: two() got an unexpected keyword argument 'c'"),
        ("def f():\n    warn_other.two()\n", "7: warn_other.two() is missing a required argument: 'a'"),
        (
            "def __reload__(change):\n    pass\n",
            "6: __reload__ of a module is never called: it is a method of an actor's class",
        ),
        ("def g(x): pass\ndef f():\n    g()\n", "8: g() is missing a required argument: 'x'"),
        (
            "class A:\n    def f(self):\n        self.g(1)\n    def g(self):\n        return 1\n",
            "8: self.g() takes 0 positional arguments, not 1",
        ),
    ],
)  # fmt: skip
def test_what_will_fail_is_told(project: Project, edit: str, told: str) -> None:
    assert told in _warnings(project, edit)


@pytest.mark.parametrize(
    "edit",
    [
        "def f():\n    global made\n    made = 1\ndef g():\n    return made\n",
        "def f():\n    try:\n        return unicode\n    except NameError:\n        return str\n",
        "def f():\n    return two(*range(2)), two(**{}), warn_other.many(1, x=2)\n",
        "def f():\n    two = print\n    two()\n",
        "def f(two):\n    two()\n",
        "def f():\n    return __name__, __file__, print\n",
        "class A:\n    x = 1\n    y = [z for z in range(x)]\n    def f(self, x=x):\n        return x\n",
        "import functools\ndef deco(f): return functools.partial(f, 1)\n@deco\ndef g(a, b): pass\n"
        "def f():\n    g(2)\n",
        "if math.pi:\n    def g(): pass\nelse:\n    def g(x): pass\ndef f():\n    g(1)\n",
        "class A:\n    def f(self):\n        self.g(1)\n    def g(self):\n        raise NotImplementedError\n",
        "class A:\n    def f(self):\n        self.g(1)\n    def g(self):\n        return 1\n"
        "class B(A):\n    def g(self, x):\n        return x\n",
        "class A:\n    def __init__(self):\n        self.g = print\n        self.g(1)\n"
        "    def g(self):\n        return 1\n",
        "def f():\n    try:\n        two(1)\n    except TypeError:\n        pass\n",
        "import sys\ndef f():\n    return long if sys.version_info[0] == 2 else int\n",
        "exec('made_here = 1')\ndef f():\n    return made_here\n",
        "from math import *\ndef f():\n    return sin(1)\n",
        "def f():\n    x = 1\n    del x\n    return [x for x in ()]\n",
        "def f():\n    match 1:\n        case {'a': a, **rest}:\n            return a, rest\n",
    ],
)  # fmt: skip
def test_what_is_right_is_not(project: Project, edit: str) -> None:
    assert _warnings(project, edit) == []


def test_only_what_was_edited_is_told(project: Project) -> None:
    source = "def f():\n    return nope_1\n\n\ndef g():\n    return 1\n"
    project.load("warned_once", source)
    assert project.edit("warned_once", source.replace("return 1", "return 2")).warnings == []
    (told,) = project.edit("warned_once", source.replace("return 1", "return nope_2")).warnings
    assert told.endswith(":6: name 'nope_2' is not defined")


def test_a_name_that_the_edit_takes_away(project: Project) -> None:
    source = "def helper():\n    return 1\ndef f():\n    return helper()\n"
    module = project.load("warned_gone", source)
    (told,) = project.edit("warned_gone", "def f():\n    return helper() + 1\n").warnings
    assert told.endswith(":2: name 'helper' is not defined")
    with pytest.raises(NameError):
        module.f()


def test_names_that_are_bound_unseen_are_known_once_they_are_there(project: Project) -> None:
    module = project.load("warned_late", "def f():\n    return 1\n")
    module.LATE = 1
    assert project.edit("warned_late", "def f():\n    return LATE\n").warnings == []


@pytest.mark.long
def test_the_standard_library_has_none() -> None:
    """As if each of its functions were edited; names that C code binds are there when it runs."""
    folder = Path(importlib.util.find_spec("json").origin or "").parents[1]  # type: ignore[union-attr]
    alarms, num = [], 0
    for path in [
        *folder.glob("[a-g]*.py"),
        *folder.glob("email/*.py"),
        *folder.glob("asyncio/*.py"),
    ]:
        text = path.read_bytes()
        tree = ast.parse(text)
        num += 1
        code = compile(tree, str(path), "exec", dont_inherit=True)
        alarms += [f"{path}:{line}: {name}" for line, name in unbound_names(code, tree, ())]
        definitions = Definitions(tree.body)
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found = misfit_calls(node, definitions.function, lambda cls, name: False)
                alarms += [f"{path}:{one.line}: {one}" for one in found]
    assert num > 80
    assert not alarms
