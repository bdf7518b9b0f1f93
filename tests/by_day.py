"""Of pytest: a share of the test files runs, with `-p tests.by_day --share 2/3`.

CI runs a third of the long tests each day, by the day of the year, so that all run within three.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest


def share_of(paths: Collection[Path], share: str) -> set[Path]:
    """The paths of a share "K/N": each Nth, from the Kth on."""
    first, step = map(int, share.split("/"))
    return set(sorted(paths)[first % step :: step])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0/1", help="K/N: each Nth of the test files, from the Kth")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = share_of({item.path for item in items}, config.getoption("--share"))
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]


def pytest_report_header(config: pytest.Config) -> str:
    return f"share of the test files: {config.getoption('--share')}"
