from __future__ import annotations

from dataclasses import dataclass

import pytest

from monarch.config_file import ConfigError, check_range


@dataclass
class Config:
    count: int = 1
    share: float = 0.5
    limit: float | None = None


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan"), float("inf")])
def test_what_lies_outside_is_refused_by_its_key(share: float) -> None:
    with pytest.raises(
        ConfigError, match=r"^must be more than 0 and less than 1, and is "
    ) as caught:
        check_range(Config(share=share), "limit", "share", more_than=0, less_than=1)
    assert caught.value.key == "share"


def test_bounds_of_a_closed_range_lie_within() -> None:
    for count in (1, 3):
        check_range(Config(count=count), "count", least=1, most=3)
    for count in (0, 4):
        with pytest.raises(ConfigError, match="must be at least 1 and at most 3") as caught:
            check_range(Config(count=count), "count", least=1, most=3)
        assert caught.value.key == "count"


def test_what_is_not_given_lies_nowhere() -> None:
    check_range(Config(), "limit", more_than=0)
    with pytest.raises(ConfigError):
        check_range(Config(limit=0.0), "limit", more_than=0)
