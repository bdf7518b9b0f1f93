"""Of pytest: what marks of our own say about when a test runs.

``long_but(n)``: of the cases of such a test the first n run with `make test`; the others are long.

``in_a_world_too``: a module whose tests are run in a world of ``monarch.testing``, too
(`tests/testing`). That is what `make test` runs; on real processes they are long. Those that are
about processes as such say ``processes``: they run on real ones alone, with `make test`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

_WORLD = "in_a_world"  # The fixture of who runs them in a world.


def later_cases(counts: Mapping[str, int]) -> set[str]:
    """Of the ids of tests, those that come after so many of the same function."""
    num_seen = Counter[str]()
    later: set[str] = set()
    for nodeid, count in counts.items():
        function = nodeid.partition("[")[0]
        num_seen[function] += 1
        if num_seen[function] > count:
            later.add(nodeid)
    return later


def is_run(item: pytest.Item) -> bool:
    """Whether there is such a test: none that is about processes is run in a world."""
    return not (_is_in_a_world(item) and item.get_closest_marker("processes"))


def is_long(item: pytest.Item) -> bool:
    """Whether a test is long because a world has it, too."""
    has_two_backings = item.get_closest_marker("in_a_world_too") is not None
    is_about_processes = item.get_closest_marker("processes") is not None
    return has_two_backings and not is_about_processes and not _is_in_a_world(item)


def _is_in_a_world(item: pytest.Item) -> bool:
    return _WORLD in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = filter(is_run, items)
    marks = {item.nodeid: item.get_closest_marker("long_but") for item in items}
    later = later_cases({nodeid: mark.args[0] for nodeid, mark in marks.items() if mark})
    for item in items:
        if item.nodeid in later or is_long(item):
            item.add_marker(pytest.mark.long)
