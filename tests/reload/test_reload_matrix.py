"""The questions that a live actor asks of a reload, each after a narrow and a wide edit.

A narrow edit changes bodies only. A wide one also changes top-level code of the same module:
an import, a constant, a new function above everything else, so that all lines move.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

from monarch_sync.reload import ReloadError

from .conftest import Project

Edit = Callable[..., object]

WIDE_TOP = """
import os, json
VERSION = 2

def brand_new():
    return VERSION

"""


@pytest.fixture(params=["narrow", "wide"])
def edit(request: pytest.FixtureRequest, project: Project) -> Edit:
    def change(name: str, *pairs: tuple[str, str]) -> object:
        if request.param == "wide":
            pairs = (*pairs, ("import os\nVERSION = 1\n", WIDE_TOP))
        return project.replace(name, *pairs)

    return change


HEAD = "import os\nVERSION = 1\n"

ACTOR = (
    HEAD
    + """
class Actor:
    def __init__(self, start=0):
        self.count = start

    def step(self):
        self.count += 1
        return "old"

    def doomed(self):
        return "here"


class Child(Actor):
    def step(self):
        return "child of " + super().step()
"""
)


def test_live_instance_runs_new_code(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Actor()
    edit("actor_mod", ('return "old"', 'return "new"'))
    assert live.step() == "new"


def test_new_method(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Actor(5)
    edit(
        "actor_mod",
        ("    def doomed", "    def extra(self):\n        return self.count\n\n    def doomed"),
    )
    assert live.extra() == 5
    assert live.doomed() == "here"


def test_changed_signature(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Actor()
    edit(
        "actor_mod",
        (
            "def step(self):\n        self.count += 1",
            "def step(self, by=10, *, sign=1):\n        self.count += by * sign",
        ),
    )
    live.step()
    live.step(5, sign=-1)
    assert live.count == 5


def test_stored_bound_method(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Actor()
    stored = live.step
    edit("actor_mod", ('return "old"', 'return "new"'))
    assert stored() == "new"
    assert live.count == 1


def test_deleted_method_is_gone(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Actor()
    edit("actor_mod", ('    def doomed(self):\n        return "here"\n', ""))
    with pytest.raises(AttributeError):
        live.doomed()


def test_subclass_elsewhere(project: Project, edit: Edit) -> None:
    project.load("actor_mod", ACTOR)
    other = project.load("other_mod", "from actor_mod import Actor\nclass Far(Actor):\n    pass\n")
    live, far = other.Far(), other.Far
    edit("actor_mod", ('return "old"', 'return "new"'))
    assert live.step() == "new"
    assert other.Far is far
    assert issubclass(far, sys.modules["actor_mod"].Actor)


def test_super(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Child()
    edit("actor_mod", ('return "old"', 'return "new"'), ('"child of "', '"heir of "'))
    assert live.step() == "heir of new"


def test_instance_state_is_kept(project: Project, edit: Edit) -> None:
    module = project.load("actor_mod", ACTOR + "\nSINGLE = Actor(40)\n")
    live = module.SINGLE
    live.step()
    edit("actor_mod", ('return "old"', 'return "new"'))
    assert module.SINGLE is live
    assert live.count == 41
    assert live.step() == "new"


LEFT = (
    HEAD
    + """
import right_mod
def left():
    return 'l1'
def both():
    return left() + right_mod.right()
"""
)


def test_import_cycle(project: Project, edit: Edit) -> None:
    project.write("left_mod", LEFT)
    right = project.load(
        "right_mod",
        """
        import left_mod
        def right():
            return 'r'
        def all():
            return left_mod.both()
        """,
    )
    edit("left_mod", ("'l1'", "'l2'"))
    assert right.all() == "l2r"


def test_from_import_users(project: Project, edit: Edit) -> None:
    project.load("func_mod", HEAD + "def f():\n    return 1\n")
    user = project.load(
        "user_mod",
        "from func_mod import f\nfrom func_mod import f as g\ndef use():\n    return f() + g()\n",
    )
    edit("func_mod", ("return 1", "return 21"))
    assert user.use() == 42


DECORATED = (
    HEAD
    + """
import functools

def loud(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            wrapper.calls += 1
            return function(*args) * times
        wrapper.calls = 0
        return wrapper
    return decorate

@loud(2)
def say(x):
    return "old" + x
"""
)


def test_decorated_function(project: Project, edit: Edit) -> None:
    module = project.load("deco_mod", DECORATED)
    held = module.say
    held("!")
    edit("deco_mod", ('"old" + x', '"new" + x'))
    assert held("?") == "new?new?"
    assert module.say is held
    assert held.calls == 2


def test_decorator_itself(project: Project, edit: Edit) -> None:
    module = project.load("deco_mod", DECORATED)
    held = module.say
    edit("deco_mod", ("function(*args) * times", "function(*args) * times + '.'"))
    assert held("?") == "old?old?."
    assert module.say is held


def test_dependents_are_recomputed(project: Project, edit: Edit) -> None:
    project.load("const_mod", HEAD + "C = 1\ndef c_of():\n    return C\n")
    user = project.load(
        "user_mod",
        """
        import const_mod
        from const_mod import C, c_of
        D = C + 1
        E = const_mod.C + 2
        F = c_of() + 3
        def use():
            return D, E, F
        """,
    )
    third = project.load("third_mod", "import user_mod as u\nG = u.D * 100\n")
    edit("const_mod", ("C = 1", "C = 10"))
    assert user.use() == (11, 12, 13)
    assert third.G == 1100


def test_isinstance_holds(project: Project, edit: Edit) -> None:
    module = project.load("actor_mod", ACTOR)
    live, cls = module.Child(), module.Actor
    edit("actor_mod", ('return "old"', 'return "new"'))
    assert module.Actor is cls
    assert isinstance(live, module.Actor)
    assert isinstance(module.Child(), cls)


def test_pickle_of_a_live_instance(project: Project, edit: Edit) -> None:
    live = project.load("actor_mod", ACTOR).Child(7)
    edit("actor_mod", ('return "old"', 'return "new"'))
    copy = pickle.loads(pickle.dumps(live))
    assert type(copy) is type(live)
    assert (copy.count, copy.step()) == (7, "child of new")


def test_pickle_through_an_old_import(project: Project, edit: Edit) -> None:
    project.load("actor_mod", ACTOR + "\ndef build():\n    return Actor()\n")
    user = project.load("user_mod", "from actor_mod import Actor, build\n")
    old_class, old_build = user.Actor, user.build
    edit("actor_mod", ('return "old"', 'return "new"'), ("return Actor()", "return Actor(3)"))
    assert pickle.loads(pickle.dumps(old_class(2))).count == 2
    assert pickle.loads(pickle.dumps(old_build)) is old_build
    assert old_build().count == 3


ENUM = (
    HEAD
    + """
import enum

class Color(enum.Enum):
    RED = 1
    GREEN = 2

    def nice(self):
        return "old " + self.name

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

FAVOURITE = Color.GREEN
"""
)


def test_enum_identity(project: Project, edit: Edit) -> None:
    module = project.load("enum_mod", ENUM)
    red, low = module.Color.RED, module.Level.LOW
    edit("enum_mod", ('"old "', '"new "'))
    assert module.Color.RED is red
    assert module.Color(1) is red
    assert module.Color["RED"] is red
    assert module.Level(1) is low
    assert red.nice() == "new RED"
    assert pickle.loads(pickle.dumps(red)) is red
    assert module.FAVOURITE is module.Color.GREEN


STATE = (
    HEAD
    + """
REGISTRY = {}
CACHE = [1]
counter = 0
weights = object()

def bump():
    global counter
    counter += 1
    REGISTRY[counter] = "old"
    return counter
"""
)


def test_module_state_is_kept(project: Project, edit: Edit) -> None:
    module = project.load("state_mod", STATE)
    module.bump()
    registry, cache, weights = module.REGISTRY, module.CACHE, module.weights
    cache.append(2)
    edit("state_mod", ('"old"', '"new"'))
    assert module.bump() == 2
    assert module.REGISTRY is registry
    assert registry == {1: "old", 2: "new"}
    assert module.CACHE == [1, 2]
    assert module.weights is weights


def test_syntax_error_in_one_of_two_files_changes_nothing(project: Project, edit: Edit) -> None:
    good = project.load("good_mod", HEAD + "def f():\n    return 1\n")
    bad = project.load("bad_mod", "def g():\n    return 1\n")
    paths = [project.write("good_mod", HEAD + "def f():\n    return 2\n")]
    paths.append(project.write("bad_mod", "def g():\n    return 2 +\n"))
    with pytest.raises(ReloadError, match=r"bad_mod\.py:2") as caught:
        project.reloader.reload(paths)
    assert (good.f(), bad.g()) == (1, 1)
    assert caught.value.phase == "compile"
    project.write("bad_mod", "def g():\n    return 2\n")
    edit("good_mod")
    assert good.f() == 2


def test_body_that_raises_leaves_the_old_module_whole(project: Project, edit: Edit) -> None:
    module = project.load("actor_mod", ACTOR)
    live = module.Actor()
    before = dict(vars(module))
    with pytest.raises(ReloadError) as caught:
        edit(
            "actor_mod",
            ('return "old"', 'return "new"'),
            ("class Child", "LIMIT = 1 / 0\n\nclass Child"),
        )
    assert vars(module) == before
    assert live.step() == "old"
    assert caught.value.phase == "run"
    assert caught.value.text == "LIMIT = 1 / 0"
    assert "ZeroDivisionError" in caught.value.message


def test_same_size_and_same_mtime(project: Project, edit: Edit) -> None:
    path = project.write("same_mod", HEAD + "def f():\n    return 1\n")
    # A cached bytecode file of the first version, as a plain import leaves it.
    run = [sys.executable, "-c", "import same_mod; print(same_mod.f())"]
    environment = {**os.environ, "PYTHONPATH": str(project.root), "PYTHONDONTWRITEBYTECODE": ""}
    assert subprocess.run(run, env=environment, capture_output=True).stdout == b"1\n"
    assert list(path.parent.glob("__pycache__/same_mod.*.pyc"))
    stat = path.stat()
    module = importlib.import_module("same_mod")
    text = path.read_text()
    path.write_text(text.replace("return 1", "return 2"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    project.reloader.reload([path])
    assert module.f() == 2
    assert subprocess.run(run, env=environment, capture_output=True).stdout == b"2\n"
    edit("same_mod", ("return 2", "return 3"))
    assert module.f() == 3
