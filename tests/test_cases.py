from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import later_cases, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]


def test_all_cases_of_a_test_but_the_first_come_later() -> None:
    counts = {
        "a.py::test_x[1]": 1,
        "a.py::test_y[1]": 1,
        "a.py::test_x[2]": 1,
        "b.py::test_x[1]": 1,
    }
    assert later_cases(counts) == {"a.py::test_x[2]"}
    assert later_cases(dict.fromkeys(counts, 2)) == set()


class _Item:
    def __init__(self, nodeid: str, marks: str, in_a_world: bool = False) -> None:
        self.nodeid, self.marks = nodeid, set(marks.split())
        self.fixturenames = ["in_a_world"] if in_a_world else []

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.Mark(name, (1,), {}, _ispytest=True) if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


def _collected(*items: _Item) -> dict[str, bool]:
    """The tests that are left, and whether they are long."""
    left = [*items]
    pytest_collection_modifyitems(left)  # type: ignore[arg-type]
    return {item.nodeid: "long" in item.marks for item in left}


def test_what_a_world_has_too_is_long_on_real_processes() -> None:
    assert _collected(
        _Item("real.py::test_call", "in_a_world_too"),
        _Item("real.py::test_kill", "in_a_world_too processes"),
        _Item("world.py::test_call", "in_a_world_too", in_a_world=True),
        _Item("world.py::test_kill", "in_a_world_too processes", in_a_world=True),
        _Item("other.py::test_call", ""),
    ) == {
        "real.py::test_call": True,
        "real.py::test_kill": False,
        "world.py::test_call": False,
        "other.py::test_call": False,
    }


def test_one_case_of_a_long_table_is_not_long() -> None:
    items = [_Item(f"a.py::test_x[{number}]", "long_but") for number in range(3)]
    assert [*_collected(*items).values()] == [False, True, True]


def test_what_has_a_world_too_is_run_in_one() -> None:
    """Else `make test` would run it nowhere."""
    worlds = "".join(path.read_text() for path in (ROOT / "tests/testing").glob("test_*.py"))
    marked = [
        path for path in (ROOT / "tests").rglob("test_*.py")
        if "\npytestmark = pytest.mark.in_a_world_too\n" in path.read_text()
    ]  # fmt: skip
    assert marked
    assert not [path for path in marked if f".{path.stem} import *" not in worlds]
