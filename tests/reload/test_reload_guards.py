"""What an import does not execute binds nothing, and so hides nothing."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import Project

_NOT_TAKEN = {
    "main": "if __name__ == '__main__':\n    {}\n",
    "main_turned": "if '__main__' == __name__:\n    {}\n",
    "main_and": "import sys\nif sys.argv and __name__ == '__main__':\n    {}\n",
    "main_else": "if __name__ != '__main__':\n    pass\nelse:\n    {}\n",
    "main_elif": "if False:\n    pass\nelif __name__ == '__main__':\n    {}\n",
    "main_in_try": "try:\n    if __name__ == '__main__':\n        {}\nfinally:\n    pass\n",
    "checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n",
    "checking_whole": "import typing as t\nif t.TYPE_CHECKING:\n    {}\n",
    "version": "import sys\nif sys.version_info < (3, 6):\n    {}\n",
    "major": "import sys\nif sys.version_info[0] == 2:\n    {}\n",
    "flag": "FLAG = False\nif FLAG:\n    {}\n",
    "handler": "try:\n    pass\nexcept ImportError:\n    {}\n",
    "no_turn": "for _ in ():\n    {}\n",
}
_BINDS_AGAIN = (
    "T = 5",
    "class T: pass",
    "from string import Template as T",
    "import string as T",
)


@pytest.mark.parametrize("again", _BINDS_AGAIN)
@pytest.mark.parametrize("kind", _NOT_TAKEN)
def test_the_definition_above_counts(project: Project, kind: str, again: str) -> None:
    name = f"guarded_{kind}_{_BINDS_AGAIN.index(again)}"
    guard = _NOT_TAKEN[kind].format(again)
    cls = "class T:\n    X = {0}\n    def f(self, a={0}):\n        return {0}\n"
    module = project.load(name, cls.format(1) + guard)
    live = module.T()
    for number in (2, 3):
        body = cls.format(1).replace("return 1", f"return {number}")
        project.edit(name, body + guard)
        assert live.f() == number
        project.edit(name, cls.format(number) + guard)
        assert (live.f(), live.X, module.T.f.__defaults__) == (number, number, (number,))
        assert type(live) is module.T


def test_what_the_guard_of_a_module_does_not_run_is_no_edit(project: Project) -> None:
    source = "RAN = []\nif __name__ == '__main__':\n    RAN.append(1)\nelse:\n    RAN.append(2)\n"
    module = project.load("guarded_else", source)
    report = project.edit("guarded_else", source.replace("append(1)", "append(3)"))
    assert (module.RAN, report.reran) == ([2], [])
    project.edit("guarded_else", source.replace("append(2)", "append(4)"))
    assert module.RAN[-1] == 4


def test_what_a_script_has_bound_in_its_guard_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "if __name__ == '__main__':\n    MODEL = 'made'\n"
    module = project.load("guarded_script", f"MODEL = None\ndef f():\n    return 1\n{guard}")
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__name__ = "__main__"
    exec(compile(guard, module.__file__ or "", "exec"), vars(module))
    project.edit("guarded_script", f"def f():\n    return 2\n{guard}")
    assert (module.f(), module.MODEL) == (2, "made")


def test_a_text_in_the_middle_is_no_docstring(project: Project) -> None:
    module = project.load("guarded_text", "A = 1\n")
    project.edit("guarded_text", "A = 1\n'about A'\nB = 2\n")
    assert (module.__doc__, module.B) == (None, 2)
    project.edit("guarded_text", "'about all'\nA = 1\n'about A'\nB = 2\n")
    assert module.__doc__ == "about all"
    importlib.invalidate_caches()


def test_a_proxy_that_says_what_its_class_is(project: Project) -> None:
    """`__class__` in a class body is a value for instances, as in werkzeug's `LocalProxy`."""
    source = (
        "class Lookup:\n    def __get__(self, one, cls=None):\n        return int\n"
        "class Proxy:\n    __class__ = Lookup()\n    X = {0}\n"
        "    def f(self):\n        return {0}\n"
    )
    module = project.load("guarded_proxy", source.format(1))
    live = module.Proxy()
    project.edit("guarded_proxy", source.format(2))
    assert (live.f(), live.X, live.__class__) == (2, 2, int)


def test_a_name_that_is_deleted_after_its_use(project: Project) -> None:
    """As `versioneer` has it: what was computed by it follows all the same."""
    source = "VERSION = '{}'\ndef get():\n    return {{'version': VERSION}}\n"
    project.load("guarded_version", source.format(1))
    user = project.load(
        "guarded_user",
        "from guarded_version import get\n__version__ = get()['version']\ndel get\n",
    )
    project.edit("guarded_version", source.format(2))
    assert (user.__version__, hasattr(user, "get")) == ("2", False)


def _as_script(project: Project, monkeypatch: pytest.MonkeyPatch, source: str) -> ModuleType:
    """A module that has been run as a script, to its end."""
    module = project.load("plain_script", source)
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__name__ = "__main__"
    return module


def test_actions_of_a_script_that_has_ended_are_not_run_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that has failed waits for a fix in its process: that must not start it there."""
    project.load("script_part", "def make():\n    return 1\n")
    source = (
        "from script_part import make\nRAN = []\nRATE = 1\n"
        "def double():\n    return 2 * RATE\n"
        "model = make()\nfor step in range(2):\n    RAN.append(make())\n"
    )
    module = _as_script(project, monkeypatch, source)
    assert module.RAN == [1, 1]
    project.edit("script_part", "def make():\n    return 2\n")
    assert (module.make(), module.model, module.RAN) == (2, 1, [1, 1])
    report = project.edit(
        "plain_script", source.replace("RATE = 1", "RATE = 3").replace("range(2)", "range(5)")
    )
    assert (module.double(), module.RAN) == (6, [1, 1])
    assert report.for_next_start == [
        "plain_script.py:7: `for step in range(5):` counts from the next start of the run"
    ]


def test_an_edited_loop_of_a_script_that_runs_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import threading\nAT, GO = threading.Event(), threading.Event()\nSTEPS = []\n"
    loop = "while not GO.wait(0.001):\n    STEPS.append(1)\n    AT.set()\n"
    module = _as_script(project, monkeypatch, source)
    module.__dict__["GO"], module.__dict__["AT"] = threading.Event(), threading.Event()
    code = compile(f"\n\n\n{loop}", module.__file__ or "", "exec")
    Path(module.__file__ or "").write_text(source + loop)
    project.reloader.reload()
    runs = threading.Thread(target=exec, args=(code, vars(module)))
    runs.start()
    try:
        assert module.AT.wait(10)
        report = project.edit("plain_script", source + loop.replace("append(1)", "append(2)"))
    finally:
        module.GO.set()
        runs.join(10)
    assert set(module.STEPS) == {1}
    assert report.for_next_start == [
        "plain_script.py:4: `while not GO.wait(0.001):` counts from the next start of the run"
    ]


def test_an_edited_main_guard_of_a_script_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def main(steps):\n    return steps\nif __name__ == '__main__':\n    main(1)\n"
    _as_script(project, monkeypatch, source)
    report = project.edit("plain_script", source.replace("main(1)", "main(2)"))
    assert report.for_next_start == [
        "plain_script.py:3: `if __name__ == '__main__':` counts from the next start of the run"
    ]
