"""A configuration: a dataclass, filled from layers of which the last wins.

    default  <  TOML file  <  environment  <  key=value

Every mistake is found before a process starts, and named by its place: the file and line, the
variable or the override, the dotted key, and the known key that was probably meant. Where each
value came from is kept.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_type_hints

from monarch.config_file.toml_text import KeyPath, TOMLDecodeError, key_lines, loads
from monarch.config_file.types import Mismatch, convert, is_config, parse_text, to_toml_value

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "Origin",
    "changed_keys",
    "load_config",
    "resolve_config",
    "to_toml",
    "with_keys_of",
]

C = TypeVar("C")

ENVIRONMENT_PREFIX = "MONARCH_CONFIG_"


class ConfigError(ValueError):
    """A configuration that cannot be used, told to the person who wrote it.

    A config's `__post_init__` may raise it with nothing but a reason and a `key`; `load_config`
    then adds where the value of that key came from.
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
    """Where a value came from. `text` is fit to be shown: `ddp.toml:12`, `epochs=3`."""

    layer: Literal["default", "file", "environment", "override"]
    text: str = "default"
    path: Path | None = None
    line: int | None = None
    source_line: str | None = None

    def error(self, reason: str, key: str, suggestion: str | None = None) -> ConfigError:
        """What is wrong with `key` here."""
        place = {"default": "", "file": f"{self.text}: "}.get(
            self.layer, f"{self.layer} '{self.text}': "
        )
        message = f"{place}{reason}"
        if suggestion:
            message += f"; did you mean '{suggestion}'?"
        if self.source_line is not None:
            message += f"\n  {self.line} | {self.source_line}"
        return ConfigError(message, path=self.path, line=self.line, key=key, suggestion=suggestion)


DEFAULT = Origin("default")


@dataclass(frozen=True)
class LoadedConfig(Generic[C]):
    """A config, and for each of its dotted keys where the value came from."""

    config: C
    origins: dict[str, Origin]

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """To a ConfigError that is raised within and names a key, add where its value is from."""
        try:
            yield
        except ConfigError as error:
            raise _located(error, "", self.origins) from None


def load_config(
    config_class: type[C],
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[C]:
    """Fill `config_class` from a TOML file, `MONARCH_CONFIG_*` variables and `key=value` texts.

    A variable names its key in capitals, with two underscores for a dot:
    `MONARCH_CONFIG_DATA__SEED=3`. Raises ConfigError.
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
    """`load_config` for the text of a file. `path` is only shown."""
    schema = dict(_schema(config_class))
    values: dict[str, Any] = {}
    origins = dict.fromkeys(schema, DEFAULT)
    for given in (
        *_from_file(schema, text, path),
        *_from_environment(schema, environment or {}),
        *_from_overrides(schema, overrides),
    ):
        hint = _hint_of(schema, given)
        try:
            value = parse_text(given.value, hint) if given.is_text else convert(given.value, hint)
        except Mismatch as mismatch:
            reason = f"'{given.key}' expects {mismatch.expected}, got {mismatch.got}"
            raise given.origin.error(reason, given.key, mismatch.suggestion) from None
        values[given.key] = value
        origins[given.key] = given.origin
    return LoadedConfig(_build(config_class, "", values, origins, path), origins)


def to_toml(config: Any, origins: Mapping[str, Origin] | None = None) -> str:
    """Write a config as TOML that loads to an equal one. Origins become comments."""
    tables: dict[str, list[str]] = {}
    for key, value in _leaves(config):
        table, _, name = key.rpartition(".")
        line = f"{name} = {to_toml_value(value)}"
        if origins and key in origins:
            # A comment may hold neither line breaks nor control characters; an override may.
            shown = "".join(c if c.isprintable() else " " for c in origins[key].text)
            line += f"  # {shown}"
        tables.setdefault(table, []).append(line)
    tops = tables.pop("", [])
    parts = [tops, *([f"[{table}]", *lines] for table, lines in tables.items())]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def changed_keys(old: C, new: C) -> list[str]:
    """The dotted keys in which two configs of one class differ, in the class's order."""
    before = dict(_leaves(old))
    return [key for key, value in _leaves(new) if value != before[key]]


def with_keys_of(config: C, other: C, keys: Sequence[str]) -> C:
    """`config`, with the values of `other` at these dotted keys. Raises ConfigError."""
    found = {key: value for key, value in _leaves(other) if key in keys}
    return _build(type(config), "", found, {}, None, config)


@dataclass(frozen=True)
class _Given:
    """One value that a layer gives to one key: text still to be parsed, or a TOML value."""

    key: str
    value: Any
    origin: Origin
    is_text: bool = False


def _from_file(schema: Mapping[str, Any], text: str, path: Path | None) -> Iterator[_Given]:
    shown = path or Path("config.toml")
    try:
        document = loads(text)
    except TOMLDecodeError as error:
        raise _syntax_error(text, shown, str(error)) from None
    lines = key_lines(text)
    source = _lines(text)

    def walk(table: dict[str, Any], above: KeyPath) -> Iterator[_Given]:
        for name, value in table.items():
            key_path = (*above, name)
            key = ".".join(key_path)
            if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in schema):
                yield from walk(value, key_path)
                continue
            line = lines[key_path]
            origin = Origin("file", f"{shown}:{line}", shown, line, source[line - 1])
            yield _Given(key, value, origin)

    yield from walk(document, ())


def _from_environment(
    schema: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[_Given]:
    by_variable = {key.upper().replace(".", "__"): key for key in schema}
    for variable, value in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable[len(ENVIRONMENT_PREFIX) :]
            key = by_variable.get(name, name.lower().replace("__", "."))
            origin = Origin("environment", f"{variable}={value}")
            yield _Given(key, value, origin, is_text=True)


def _from_overrides(schema: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[_Given]:
    for override in overrides:
        key, equals, value = override.partition("=")
        origin = Origin("override", override)
        if not equals:
            raise origin.error("an override is written key=value", key, _nearest(key, schema))
        yield _Given(key.strip(), value.strip(), origin, is_text=True)


def _syntax_error(text: str, path: Path, message: str) -> ConfigError:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    lines = _lines(text)
    if place:
        line, column = int(place[1]), int(place[2])
        message = message[: place.start()]
    else:
        line, column = len(lines), len(lines[-1]) + 1
        message = message.replace(" (at end of document)", "") + ", and the file ends"
    shown = lines[line - 1] if line <= len(lines) else ""
    margin = f"  {line} | "
    caret = " " * (len(margin) + column - 1) + "^"
    return ConfigError(
        f"{path}:{line}:{column}: {message}\n{margin}{shown}\n{caret}", path=path, line=line
    )


def _lines(text: str) -> list[str]:
    # Not splitlines, which also breaks at characters that TOML does not count as line ends.
    return [line.removesuffix("\r") for line in text.split("\n")]


def _hint_of(schema: Mapping[str, Any], given: _Given) -> Any:
    if given.key in schema:
        return schema[given.key]
    inside = [key for key in schema if key.startswith(f"{given.key}.")]
    if inside:
        reason = f"'{given.key}' is a table of keys, such as '{inside[0]}', not a value"
        raise given.origin.error(reason, given.key)
    suggestion = _nearest(given.key, schema)
    raise given.origin.error(f"unknown key '{given.key}'", given.key, suggestion)


def _nearest(key: str, schema: Mapping[str, Any]) -> str | None:
    """The known key that looks most like `key`, as a whole or in its last part."""

    def likeness(known: str) -> float:
        whole = SequenceMatcher(None, key.lower(), known.lower()).ratio()
        last = SequenceMatcher(
            None, key.lower().rpartition(".")[2], known.lower().rpartition(".")[2]
        ).ratio()
        return max(whole, last)

    tables = {known.rpartition(".")[0] for known in schema} - {""}
    best = max((*schema, *tables), key=likeness, default=None)
    return best if best is not None and likeness(best) >= 0.6 else None


def _schema(config_class: type[Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key with its type, nested dataclasses taken apart."""
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        key = f"{above}{field.name}"
        if is_config(hints[field.name]):
            yield from _schema(hints[field.name], f"{key}.")
        else:
            yield key, hints[field.name]


def _leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_config(type(value)):
            yield from _leaves(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", value


def _build(
    config_class: type[C],
    above: str,
    values: Mapping[str, Any],
    origins: Mapping[str, Origin],
    path: Path | None,
    default: C | None = None,
) -> C:
    """Make a config of the values given and, for the rest, its defaults."""
    hints = get_type_hints(config_class)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        key = f"{above}{field.name}"
        known = _default_of(field) if default is None else getattr(default, field.name)
        if is_config(hints[field.name]):
            nested = None if known is dataclasses.MISSING else known
            arguments[field.name] = _build(
                hints[field.name], f"{key}.", values, origins, path, nested
            )
        elif key in values:
            arguments[field.name] = values[key]
        elif known is not dataclasses.MISSING:
            arguments[field.name] = known
        else:
            where = f"{path}: " if path else ""
            raise ConfigError(f"{where}the key '{key}' has no value", path=path, key=key)
    try:
        return config_class(**arguments)
    except ConfigError as error:
        raise _located(error, above, origins) from None


def _located(error: ConfigError, above: str, origins: Mapping[str, Origin]) -> ConfigError:
    """The same, with the place that the value of its key came from."""
    if error.key is None:
        return error
    key = f"{above}{error.key}"
    return origins.get(key, DEFAULT).error(f"'{key}' {error}", key, error.suggestion)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
