"""A configuration: a dataclass, filled from layers of which the last wins.

    default  <  TOML file  <  environment  <  key=value

Every mistake is found before a process starts. Its error names the file and line, the variable or
the override, the dotted key, and the known key that was probably meant. The origin of each value is
kept.

A class may say more about its keys: ``KEYS_GONE`` are keys that no longer exist, each with what to
use instead; ``KEYS_RENAMED`` are older names that are still read. If some keys decide which other
keys exist, ``CHOOSING_KEYS`` names them, and ``chosen(**values)`` returns the class for their
values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from monarch.config_file.keys import build, fields_of, nearest
from monarch.config_file.layers import Given, from_environment, from_file, from_overrides
from monarch.config_file.origin import DEFAULT, ConfigError, Origin, located
from monarch.config_file.types import Mismatch, convert, parse_text

C = TypeVar("C")


@dataclass(frozen=True)
class LoadedConfig(Generic[C]):
    """A config, and for each of its dotted keys where the value came from."""

    config: C
    origins: dict[str, Origin]

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """If the block raises a ConfigError that names a key, add where the key's value came
        from."""
        try:
            yield
        except ConfigError as error:
            raise located(error, "", self.origins) from None


def load_config(
    config_class: type[C],
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[C]:
    """Fill `config_class` from a TOML file, `MONARCH_CONFIG_*` variables and `key=value` texts.

    A variable names its key in capitals, with two underscores for a dot:
    `MONARCH_CONFIG_DATA__SEED=3`. Raises ConfigError if the file cannot be read, or a key or a
    value is invalid.
    """
    if path is None:
        return resolve_config(config_class, "", None, overrides, environment)
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot read the config: {reason}", path=path) from error
    return resolve_config(config_class, text, path, overrides, environment)


def resolve_config(
    config_class: type[C],
    text: str,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[C]:
    """Fill a config as `load_config` does, from the text of a file. `path` is only for messages."""

    def given_to(cls: type[Any]) -> list[Given]:
        return _given(cls, text, path, environment or {}, overrides)

    choosing = getattr(config_class, "CHOOSING_KEYS", ())
    if choosing:
        chosen = [each for each in given_to(config_class) if each.key in choosing]
        schema = _schema_of(config_class)
        try:
            config_class = config_class.chosen(  # type: ignore[attr-defined]
                **{each.key: _value_of(each, schema[each.key]) for each in chosen}
            )
        except ConfigError as error:
            raise located(error, "", {each.key: each.origin for each in chosen}) from None
    schema = _schema_of(config_class)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(schema, DEFAULT)
    for each in given_to(config_class):
        hint = _hint_of(schema, each, getattr(config_class, "KEYS_GONE", {}))
        values[each.key] = _value_of(each, hint)
        origins[each.key] = each.origin
    return LoadedConfig(build(config_class, "", values, origins, path), origins)


def _schema_of(config_class: type[Any]) -> dict[str, Any]:
    return {key: hint for key, _, hint in fields_of(config_class)}


def _given(
    config_class: type[Any],
    text: str,
    path: Path | None,
    environment: Mapping[str, str],
    overrides: Sequence[str],
) -> list[Given]:
    """Return the values of all layers, under their current key names; the last layer wins."""
    renamed = getattr(config_class, "KEYS_RENAMED", {})
    names = {**_schema_of(config_class), **getattr(config_class, "KEYS_GONE", {}), **renamed}
    layers = (
        *from_file(names, text, path),
        *from_environment(names, environment),
        *from_overrides(names, overrides),
    )
    return [dataclasses.replace(each, key=renamed.get(each.key, each.key)) for each in layers]


def _value_of(given: Given, hint: Any) -> Any:
    try:
        return parse_text(given.value, hint) if given.is_text else convert(given.value, hint)
    except Mismatch as mismatch:
        reason = f"'{given.key}' expects {mismatch.expected}, got {mismatch.got}"
        raise given.origin.error(reason, given.key, mismatch.suggestion) from None


def _hint_of(schema: Mapping[str, Any], given: Given, gone: Mapping[str, str]) -> Any:
    """Return the type of a given key. ``gone`` maps removed keys to advice on each. Raises
    ConfigError for an unknown key.
    """
    if given.key in schema:
        return schema[given.key]
    if given.key in gone:
        raise given.origin.error(f"'{given.key}' {gone[given.key]}", given.key)
    inside = [key for key in schema if key.startswith(f"{given.key}.")]
    if inside:
        reason = f"'{given.key}' is a table of keys, such as '{inside[0]}', not a value"
        raise given.origin.error(reason, given.key)
    suggestion = nearest(given.key, schema)
    raise given.origin.error(f"unknown key '{given.key}'", given.key, suggestion)
