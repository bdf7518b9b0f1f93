"""Where a value of a config came from, and errors that point there."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


class ConfigError(ValueError):
    """A configuration cannot be used; the message is for the person who wrote it.

    A config's `__post_init__` may raise it with only a reason and a `key`; `load_config` then adds
    where the value of that key came from.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path | None = None,
        line: int | None = None,
        key: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.key = key
        self.suggestion = suggestion

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigError, self.args, self.__dict__


@dataclass(frozen=True)
class Origin:
    """Where a value came from. `text` is for messages: `ddp.toml:12`, `epochs=3`."""

    layer: Literal["default", "file", "environment", "override"]
    text: str = "default"
    path: Path | None = None
    line: int | None = None
    source_line: str | None = None

    def error(self, reason: str, key: str, suggestion: str | None = None) -> ConfigError:
        """Return an error about `key` that names this place, and quotes its line if there is
        one."""
        prefix = {"default": "", "file": f"{self.text}: "}.get(
            self.layer, f"{self.layer} '{self.text}': "
        )
        message = f"{prefix}{reason}"
        if suggestion:
            message += f"; did you mean '{suggestion}'?"
        if self.source_line is not None:
            message += f"\n  {self.line} | {self.source_line}"
        return ConfigError(message, path=self.path, line=self.line, key=key, suggestion=suggestion)


DEFAULT = Origin("default")


def located(error: ConfigError, above: str, origins: Mapping[str, Origin]) -> ConfigError:
    """Return the error with the place that the value of its key came from."""
    if error.key is None:
        return error
    key = f"{above}{error.key}"
    return origins.get(key, DEFAULT).error(f"'{key}' {error}", key, error.suggestion)


def check_range(
    config: Any,
    *keys: str,
    least: float | None = None,
    more_than: float | None = None,
    less_than: float | None = None,
    most: float | None = None,
) -> None:
    """Raise ConfigError for the first of ``keys`` whose value is out of range. None is never out of
    range."""
    bounds = [
        (operator.ge, "at least", least),
        (operator.gt, "more than", more_than),
        (operator.lt, "less than", less_than),
        (operator.le, "at most", most),
    ]
    checks = [(holds, words, bound) for holds, words, bound in bounds if bound is not None]
    for key in keys:
        value = getattr(config, key)
        if value is not None and not all(holds(value, bound) for holds, _, bound in checks):
            wanted = " and ".join(f"{words} {bound}" for _, words, bound in checks)
            raise ConfigError(f"must be {wanted}, and is {value}", key=key)
