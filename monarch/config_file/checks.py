"""What a config says in its ``__post_init__`` of values that make no sense."""

from __future__ import annotations

import operator
from typing import Any

from monarch.config_file.origin import ConfigError


def check_range(
    config: Any,
    *keys: str,
    least: float | None = None,
    more_than: float | None = None,
    less_than: float | None = None,
    most: float | None = None,
) -> None:
    """Raise ConfigError for the first of ``keys`` whose value lies outside; None lies nowhere."""
    bounds = [
        (operator.ge, "at least", least),
        (operator.gt, "more than", more_than),
        (operator.lt, "less than", less_than),
        (operator.le, "at most", most),
    ]
    given = [(holds, words, bound) for holds, words, bound in bounds if bound is not None]
    for key in keys:
        value = getattr(config, key)
        if value is not None and not all(holds(value, bound) for holds, _, bound in given):
            wanted = " and ".join(f"{words} {bound}" for _, words, bound in given)
            raise ConfigError(f"must be {wanted}, and is {value}", key=key)
