"""The fresh process that decides imports what an edit has reached, and nothing besides."""

from __future__ import annotations

import textwrap

import pytest

from monarch_reload import NeedsRespawn, ReloadError
from monarch_reload.trial.spare import NewState, import_in_subprocess

from .conftest import Project

# What it has taken is not to be seen from outside, and cannot be taken out again.
_ONCE = """
    import array
    _TAKEN = array.array("q")
    def once(name):
        if hash(name) in _TAKEN:
            raise ValueError(f"{name} is there already")
        _TAKEN.append(hash(name))
        return name
    """


class Asked:
    """The modules of each question that a fresh process was asked, without those of `_ONCE`."""

    def __init__(self) -> None:
        self.modules: list[list[str]] = []

    def __call__(self, state: NewState) -> ReloadError | None:
        self.modules.append([name for name, _ in state.modules if not name.endswith("_once")])
        return import_in_subprocess(state)


@pytest.fixture
def asked(project: Project, monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(project.reloader, "_spare", asked)
    return asked


def _load_pair(project: Project, name: str) -> str:
    """A module that cannot be prepared in place. Gives an edit of it, which can be imported."""
    project.load(f"{name}_once", _ONCE)
    project.load(name, f"from {name}_once import once\nA = once('a')\nB = 1\n")
    return f"from {name}_once import once\nA = once('a') + ''\nB = 2\n"


def test_a_heavy_module_that_imports_nothing_of_the_edited_ones_is_not_imported(
    project: Project, asked: Asked
) -> None:
    edited = _load_pair(project, "reached_one")
    marker = project.root / "imports"
    heavy = f"with open({str(marker)!r}, 'a') as file:\n    file.write('once more')\n"
    project.load("reached_heavy", heavy + "# reached_one is named here, and not imported\n")
    project.load("reached_user", "import reached_one\nC = reached_one.B\n")
    with pytest.raises(NeedsRespawn, match="only a fresh process imports it"):
        project.edit("reached_one", edited)
    assert marker.read_text() == "once more"
    assert asked.modules == [["reached_one", "reached_user"]]


@pytest.mark.parametrize(
    ("taking", "named"),
    [
        ("import reached_two", "reached_two.B"),
        ("import reached_two as r", "r.B"),
        ("from reached_two import B", "B"),
        ("from reached_two import *", "B"),
        ("def late():\n    import reached_two as r\n    return r\nr = late()", "r.B"),
        ("import importlib\nr = importlib.import_module('reached_' + 'two')", "r.B"),
        ("from reached_way import r", "r.B"),
    ],
    ids=["import", "as", "from", "star", "in a function", "computed", "by way of another"],
)
def test_the_failure_of_an_importer_is_found(
    project: Project, asked: Asked, taking: str, named: str
) -> None:
    edited = _load_pair(project, "reached_two")
    project.load("reached_way", "import reached_two as r\n")
    project.load("reached_other", "X = 1\n")
    user = project.load("reached_breaks", f"{taking}\nC = 1 / {named}\n")
    with pytest.raises(ReloadError, match="ZeroDivisionError") as caught:
        project.edit("reached_two", edited.replace("B = 2", "B = 0"))
    assert caught.value.path == str(project.path("reached_breaks"))
    assert user.C == 1
    assert "reached_breaks" in asked.modules[0]
    assert "reached_other" not in asked.modules[0]


def test_modules_of_packages_are_reached_by_dots_and_through_their_packages(
    project: Project, asked: Asked
) -> None:
    (project.root / "reached_pkg").mkdir()
    (project.root / "reached_pkg" / "inner").mkdir()
    project.load("reached_pkg", "")
    project.load("reached_pkg.low_once", _ONCE)
    project.load("reached_pkg.low", "from .low_once import once\nA = once('p')\nB = 1\n")
    project.load("reached_pkg.beside", "from . import low\n")
    project.load("reached_pkg.inner", "from ..low import B\n")
    project.load("reached_pkg.inner.deep", "X = 1\n")
    project.load("reached_pkg.alone", "Y = 1\n")
    project.load("reached_outside", "import reached_pkg.beside\n")
    project.load("reached_elsewhere", "import reached_pkg.alone\n")
    with pytest.raises(NeedsRespawn):
        project.edit("reached_pkg.low", "from .low_once import once\nA = once('p') + ''\nB = 2\n")
    names = ["low", "beside", "inner", "inner.deep"]
    assert asked.modules == [[*(f"reached_pkg.{name}" for name in names), "reached_outside"]]


def test_a_module_that_imports_what_only_now_arrives_is_reached(
    project: Project, asked: Asked
) -> None:
    edited = _load_pair(project, "reached_three")
    hopeful = "try:\n    import reached_extra\nexcept ImportError:\n    reached_extra = None\n"
    project.load("reached_hopeful", f"{hopeful}D = 1 / getattr(reached_extra, 'N', 1)\n")
    project.load("reached_plain", "X = 1\n")
    with pytest.raises(ReloadError, match="ZeroDivisionError"):
        project.prepare(reached_three=edited, reached_extra="N = 0\n")
    assert asked.modules[0] == ["reached_three", "reached_hopeful"]


def test_what_another_module_does_for_it_is_not_missed(project: Project, asked: Asked) -> None:
    """It imports the table only; the one that fills it was imported before by somebody else."""
    project.load("reached_table", "TABLE = {}\n")
    project.load("reached_fills", "import reached_table\nreached_table.TABLE['f'] = 1\n")
    _load_pair(project, "reached_four")
    text = "from reached_four_once import once\nimport reached_table\n"
    text += "A = once('a') + ''\nB = reached_table.TABLE['f']\n"
    with pytest.raises(NeedsRespawn, match="only a fresh process imports it"):
        project.edit("reached_four", text)
    assert len(asked.modules) == 2
    assert "reached_fills" not in asked.modules[0]
    assert "reached_fills" in asked.modules[1]


def test_a_failure_that_is_the_same_in_both_is_not_asked_for_twice(
    project: Project, asked: Asked
) -> None:
    project.load("reached_five", "A = 1\n")
    project.load("reached_unconcerned", "X = 1\n")
    with pytest.raises(ReloadError, match="ZeroDivisionError"):
        project.edit("reached_five", "A = 1 / 0\n")
    assert asked.modules == [["reached_five"]]


def test_where_a_config_file_changes_all_modules_are_tried(project: Project, asked: Asked) -> None:
    edited = _load_pair(project, "reached_six")
    project.load("reached_reader", "X = 1\n")
    (project.root / "rates.toml").write_text("rate = 1\n")
    text = textwrap.dedent(edited)
    with pytest.raises(NeedsRespawn):
        project.reloader.reload([project.write("reached_six", text), project.root / "rates.toml"])
    assert "reached_reader" in asked.modules[0]
