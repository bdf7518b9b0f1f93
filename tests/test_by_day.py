from __future__ import annotations

import itertools
from pathlib import Path

from tests.by_day import share_of

_PATHS = [Path(f"tests/test_{number}.py") for number in range(8)]


def test_three_days_run_each_file_once() -> None:
    shares = [share_of(_PATHS, f"{day}/3") for day in (365, 366, 1)]
    assert set().union(*shares) == set(_PATHS)
    assert not any(one & other for one, other in itertools.combinations(shares, 2))


def test_a_share_of_one_is_all() -> None:
    assert share_of(_PATHS, "0/1") == set(_PATHS)
