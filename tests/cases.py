"""Of pytest: what marks of our own say about when a test runs.

``long_but_one``: of the cases of such a test the first runs with `make test`; the others are long.

``in_a_world_too``: a module whose tests are run in a world of ``monarch.testing``, too
(`tests/testing`). That is what `make test` runs; on real processes they are long. Those that are
about processes as such say ``processes``: they run on real ones alone, with `make test`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

_WORLD = "in_a_world"  # The fixture of who runs them in a world.


def cases_after_the_first(nodeids: Iterable[str]) -> set[str]:
    """Of the ids of tests, those of a function that an earlier one is of, too."""
    functions: set[str] = set()
    later: set[str] = set()
    for nodeid in nodeids:
        function = nodeid.partition("[")[0]
        if function in functions:
            later.add(nodeid)
        functions.add(function)
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
    marked = {item.nodeid: item for item in items if item.get_closest_marker("long_but_one")}
    later = [marked[nodeid] for nodeid in cases_after_the_first(marked)]
    for item in (*later, *filter(is_long, items)):
        item.add_marker(pytest.mark.long)
