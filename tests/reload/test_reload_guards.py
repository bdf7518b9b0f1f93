"""What an import does not execute binds nothing, and so hides nothing."""

from __future__ import annotations

import importlib
import sys

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
