"""The dotted keys of a config: a dataclass, in which other dataclasses may be nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from monarch.config_file.origin import ConfigError, Origin, located
from monarch.config_file.types import is_config

C = TypeVar("C")
Field = dataclasses.Field[Any]


def fields_of(config_class: type[Any], above: str = "") -> Iterator[tuple[str, Field, Any]]:
    """Yield every dotted key with its field and its type; nested dataclasses are expanded."""
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        key = f"{above}{field.name}"
        if is_config(hints[field.name]):
            yield from fields_of(hints[field.name], f"{key}.")
        else:
            yield key, field, hints[field.name]


def leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key with its value."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_config(type(value)):
            yield from leaves(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", value


def changed_keys(old: C, new: C) -> list[str]:
    """Return the dotted keys in which two configs differ, in the order of the class. If their
    nested classes differ, keys that only one config has are included.
    """
    old_values, new_values = dict(leaves(old)), dict(leaves(new))
    missing = object()
    changed = [key for key, value in new_values.items() if value != old_values.get(key, missing)]
    return [*changed, *(key for key in old_values if key not in new_values)]


def with_keys_of(config: C, other: C, keys: Sequence[str]) -> C:
    """Return `config` with the values of `other` at these dotted keys.

    Raises ConfigError if the config class refuses the values together.
    """
    return with_keys(config, {key: value for key, value in leaves(other) if key in keys})


def with_keys(config: C, values: Mapping[str, Any]) -> C:
    """Return `config` with these values by dotted key.

    Raises ConfigError if the config class refuses the values together.
    """
    return build(type(config), "", values, {}, None, config)


def build(
    config_class: type[C],
    above: str,
    values: Mapping[str, Any],
    origins: Mapping[str, Origin],
    path: Path | None,
    default: C | None = None,
) -> C:
    """Return a config with the given values. Other keys have the values of `default`, if it is
    given.

    Without it they have the class's defaults. Raises ConfigError if a key has no value, or if the
    class refuses the values. `origins` and `path` say in the error where a value came from.
    """
    hints = get_type_hints(config_class)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        key = f"{above}{field.name}"
        value = _default_of(field) if default is None else getattr(default, field.name)
        if is_config(hints[field.name]):
            nested = None if value is dataclasses.MISSING else value
            arguments[field.name] = build(
                hints[field.name], f"{key}.", values, origins, path, nested
            )
        elif key in values:
            arguments[field.name] = values[key]
        elif value is not dataclasses.MISSING:
            arguments[field.name] = value
        else:
            where = f"{path}: " if path else ""
            raise ConfigError(f"{where}the key '{key}' has no value", path=path, key=key)
    try:
        return config_class(**arguments)
    except ConfigError as error:
        raise located(error, above, origins) from None
    except ValueError as error:
        where = f"{path}: " if path else ""
        raise ConfigError(f"{where}{error}", path=path) from error


def _default_of(field: Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def nearest(key: str, schema: Mapping[str, Any]) -> str | None:
    """Return the known key or table that is most similar to `key`, as a whole or in its last part.

    None if none is similar enough.
    """

    def likeness(candidate: str) -> float:
        pairs = (key, candidate), (key.rpartition(".")[2], candidate.rpartition(".")[2])
        return max(SequenceMatcher(None, a.lower(), b.lower()).ratio() for a, b in pairs)

    tables = {candidate.rpartition(".")[0] for candidate in schema} - {""}
    best = max((*schema, *tables), key=likeness, default=None)
    return best if best is not None and likeness(best) >= 0.6 else None
