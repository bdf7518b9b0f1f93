"""Assignments to what others made: their line is taken away."""

# ruff: noqa: E501  (programs in one line each)

from __future__ import annotations

import json

import pytest

from monarch_reload import NeedsRespawn

from .conftest import Project, walk
from .matrix_cases import Case, Step

CASES = [
    Case(
        "flag_of_a_module",
        {
            "~o": "FLAG = 0\nKEPT = []\n",
            "~m": "import ~o\n~o.FLAG = 1\n~o.EXTRA = 2\n",
            "~u": "import ~m, ~o\nX = ~o.FLAG\n",
        },
        "import ~o as o, ~u as u; kept = o.KEPT; assert u.X == 1",
        [
            Step(
                {"~m": [("~o.FLAG = 1\n~o.EXTRA = 2\n", "")]},
                "assert o.FLAG == u.X == 0 and not hasattr(o, 'EXTRA') and o.KEPT is kept",
            ),
            Step({"~m": "import ~o\n~o.FLAG = 3\n"}, "assert o.FLAG == 3"),
        ],
    ),
    Case(
        "method_and_values_of_a_class",
        {
            "~o": "class C:\n    FLAG = 0\n    KEPT = []\n    def f(self):\n        return 'own'\n",
            "~m": "from ~o import C\ndef other(self):\n    return 'other'\nC.f = other\nC.FLAG = 1\nC.NEW = 2\n",
        },
        "import ~m, ~o as o; c, f, kept = o.C(), o.C().f, o.C.KEPT; assert c.f() == 'other'",
        [
            Step(
                {"~m": [("C.f = other\nC.FLAG = 1\nC.NEW = 2\n", "")]},
                "assert c.f() == o.C().f() == 'own' and c.FLAG == 0 and not hasattr(o.C, 'NEW') and c.KEPT is kept",
            ),
            Step({"~o": [("'own'", "'newer'")]}, "assert c.f() == 'newer'"),
        ],
    ),
    Case(
        "value_of_a_class_in_the_same_module",
        {"~o": "class C:\n    pass\nC.FLAG = 1\n"},
        "import ~o as o; C = o.C",
        [
            Step(
                {"~o": [("C.FLAG = 1\n", "")]},
                "assert o.C is C and not hasattr(C, 'FLAG')",
            )
        ],
    ),
    Case(
        "function_of_a_module",
        {
            "~o": "def f():\n    return 'own'\n",
            "~m": "import ~o\nbefore = ~o.f\ndef other():\n    return 'other ' + before()\n~o.f = other\n",
        },
        "import ~m, ~o as o; assert o.f() == 'other own'",
        [Step({"~m": [("~o.f = other\n", "")]}, "assert o.f() == 'own'")],
    ),
    Case(
        "entry_of_a_table",
        {
            "~o": "TABLE = {}\nTABLE['a'] = 1\n",
            "~m": "from ~o import TABLE\nTABLE['b'] = 2\n",
        },
        "import ~m, ~o as o; table = o.TABLE; table['c'] = 3",
        [
            Step(
                {"~m": [("TABLE['b'] = 2\n", "")]},
                "assert o.TABLE is table and table == {'a': 1, 'c': 3}",
            ),
            Step(
                {"~o": [("TABLE['a'] = 1\n", "")]}, "assert o.TABLE is table and table == {'c': 3}"
            ),
        ],
    ),
    Case(
        "assignment_that_a_function_does_now",
        {
            "~o": "FLAG = 0\n",
            "~m": "import ~o\n~o.FLAG = 1\n",
        },
        "import ~m as m, ~o as o",
        [
            Step(
                {"~m": "import ~o\ndef setup():\n    ~o.FLAG = 1\nsetup()\n"},
                "assert o.FLAG == 1",
            )
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_there_before_is_made_again(case: Case, project: Project) -> None:
    walk(case, project)


def test_undo_brings_the_assignment_back(project: Project) -> None:
    owner = project.load("stray_owner", "FLAG = 0\nclass C:\n    def f(self):\n        return 1\n")
    text = "import stray_owner as o\ndef g(self):\n    return 2\n"
    project.load("stray_user", f"{text}o.FLAG = 5\no.C.f = g\n")
    c = owner.C()
    project.prepare(stray_user=text).abort()
    assert (owner.FLAG, c.f()) == (5, 2)
    report = project.edit("stray_user", text)
    assert (owner.FLAG, c.f()) == (0, 1)
    report.undo()
    assert (owner.FLAG, c.f()) == (5, 2)


def test_undo_puts_an_entry_where_it_was(project: Project) -> None:
    module = project.load("stray_table", "TABLE = {}\nTABLE['a'] = 1\nTABLE['b'] = 2\n")
    report = project.edit("stray_table", "TABLE = {}\nTABLE['b'] = 2\n")
    assert module.TABLE == {"b": 2}
    report.undo()
    assert list(module.TABLE) == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    ["json.stray_flag = 1", "config.rate = 2", "TABLE['a'] = 2"],
)
def test_what_nobody_knows_stays_and_is_told(line: str, project: Project) -> None:
    number = sum(map(ord, line))
    owner = project.load(
        f"stray_{number}",
        "class Config:\n    def __init__(self):\n        self.rate = 1\n"
        "config = Config()\nTABLE = {'a': 1}\nN = 1\n",
    )
    text = f"import json\nfrom stray_{number} import *\nX = 1\n"
    user = project.load(f"stray_user_{number}", f"{text}{line}\n")
    project.write(f"stray_user_{number}", text.replace("X = 1", "X = 2"))
    report = project.reloader.reload()
    assert user.X == 2
    [told] = report.stays
    assert line.partition(" =")[0] in told
    assert "line 4 is gone" in told
    assert told in str(report)
    assert (owner.config.rate, owner.TABLE["a"]) in ((1, 1), (2, 1), (1, 2))


def test_code_in_the_place_of_other_code_asks_for_a_new_process(project: Project) -> None:
    text = "import json\nX = 1\ndef mine():\n    return 1\n"
    user = project.load("stray_code", f"{text}json.stray_code = mine\n")
    project.write("stray_code", text.replace("X = 1", "X = 2"))
    with pytest.raises(NeedsRespawn, match=r"json\.stray_code = mine.*line 5 is gone"):
        project.reloader.reload()
    assert user.X == 1
    project.write("stray_code", text.replace("X = 1", "X = 3") + "json.stray_code = mine\n")
    project.reloader.reload()
    assert user.X == 3


def test_what_cannot_be_compared_is_not(project: Project) -> None:
    maker = "class Row:\n    def __eq__(self, other):\n        raise TypeError('rows')\n"
    text = f"import json\n{maker}row = Row()\n"
    module = project.load("stray_rows", f"{text}json.stray_row = row\n")
    json.stray_row = module.Row()  # type: ignore[attr-defined]
    project.write("stray_rows", text)
    [told] = project.reloader.reload().stays
    assert "json.stray_row = row" in told


def test_a_wrapper_that_passes_for_what_it_wraps_asks_for_a_new_process(project: Project) -> None:
    text = "import functools\nclass A:\n    def f(self):\n        return 'own'\nown = A.f\n"
    text += "@functools.wraps(own)\ndef loud(self):\n    return own(self) + '!'\n"
    module = project.load("stray_wraps", f"{text}A.f = loud\n")
    project.write("stray_wraps", text)
    with pytest.raises(NeedsRespawn, match=r"A\.f = loud"):
        project.reloader.reload()
    assert module.A().f() == "own!"


def test_what_has_another_value_by_now_is_nobody_s_any_more(project: Project) -> None:
    owner = project.load("stray_conf", "class Config:\n    pass\nconfig = Config()\n")
    project.load("stray_set", "from stray_conf import config\nconfig.rate = 2\n")
    owner.config.rate = 7
    project.edit("stray_set", "from stray_conf import config\n")
    assert owner.config.rate == 7
