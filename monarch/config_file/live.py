"""Which keys of a config may change while a run goes on."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_type_hints

from monarch.config_file.types import is_config

__all__ = ["live", "live_keys"]

T = TypeVar("T")

_LIVE = "live"


def live(default: T) -> T:
    """The default of a config's field that may change between two steps of a run.

    ``learning_rate: float = live(4e-3)``
    """
    return dataclasses.field(default=default, metadata={_LIVE: True})


def live_keys(config_class: type[Any], above: str = "") -> list[str]:
    """The dotted keys of all fields that were declared ``live``."""
    hints = get_type_hints(config_class)
    found: list[str] = []
    for field in dataclasses.fields(config_class):
        key = f"{above}{field.name}"
        if is_config(hints[field.name]):
            found += live_keys(hints[field.name], f"{key}.")
        elif field.metadata.get(_LIVE):
            found.append(key)
    return found
