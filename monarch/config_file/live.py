"""Config keys that may change while a run continues."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from monarch.config_file.keys import fields_of

T = TypeVar("T")

_LIVE = "live"


def live(default: T) -> T:
    """Mark a config field, and give its default, as changeable between two steps of a run.

    ``learning_rate: float = live(4e-3)``
    """
    return dataclasses.field(default=default, metadata={_LIVE: True})


def live_keys(config_class: type[Any]) -> list[str]:
    """Return the dotted keys of all fields that were declared ``live``."""
    return [key for key, field, _ in fields_of(config_class) if field.metadata.get(_LIVE)]
