"""A pytest plugin that runs a share of the test files: `-p tests.by_day --share 2/3`.

CI runs a third of the long tests each day, by the day of the year, so that all run within three.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0/1", help="K/N: each Nth of the test files, from the Kth")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = map(int, str(config.getoption("--share")).split("/"))
    paths = sorted({item.path for item in items})
    chosen = set(paths[first % step :: step])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]


def pytest_report_header(config: pytest.Config) -> str:
    return f"share of the test files: {config.getoption('--share')}"
