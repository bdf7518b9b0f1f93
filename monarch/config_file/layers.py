"""The values that a TOML file, the environment and a command line give to the keys of a config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.config_file.keys import nearest
from monarch.config_file.origin import ConfigError, Origin
from monarch.config_file.toml_text import KeyPath, TOMLDecodeError, key_lines, loads

ENVIRONMENT_PREFIX = "MONARCH_CONFIG_"


@dataclass(frozen=True)
class Given:
    """One value that a layer gives to one key: unparsed text (`is_text`), or a TOML value."""

    key: str
    value: Any
    origin: Origin
    is_text: bool = False


def from_file(schema: Mapping[str, Any], text: str, path: Path | None) -> Iterator[Given]:
    """Yield the values of a TOML text, which is the file at ``path``.

    Raises ConfigError if it is no valid TOML.
    """
    named = path or Path("config.toml")
    try:
        document = loads(text)
    except TOMLDecodeError as error:
        raise _syntax_error(text, named, str(error)) from None
    except ValueError as error:  # A number that is too long, without its line.
        raise ConfigError(f"{named}: {error}", path=path) from None
    lines = key_lines(text)
    source = _lines(text)

    def walk(table: dict[str, Any], above: KeyPath) -> Iterator[Given]:
        for name, value in table.items():
            key_path = (*above, name)
            key = ".".join(key_path)
            if isinstance(value, dict) and any(other.startswith(f"{key}.") for other in schema):
                yield from walk(value, key_path)
                continue
            line = lines[key_path]
            origin = Origin("file", f"{named}:{line}", named, line, source[line - 1])
            yield Given(key, value, origin)

    yield from walk(document, ())


def from_environment(schema: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Given]:
    """Yield the values of `MONARCH_CONFIG_*` variables."""
    by_variable = {key.upper().replace(".", "__"): key for key in schema}
    for variable, value in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable[len(ENVIRONMENT_PREFIX) :]
            key = by_variable.get(name, name.lower().replace("__", "."))
            origin = Origin("environment", f"{variable}={value}")
            yield Given(key, value, origin, is_text=True)


def from_overrides(schema: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[Given]:
    """Yield the values of `key=value` texts. Raises ConfigError for a text without `=`."""
    for override in overrides:
        key, equals, value = override.partition("=")
        origin = Origin("override", override)
        if not equals:
            raise origin.error("an override is written key=value", key, nearest(key, schema))
        yield Given(key.strip(), value.strip(), origin, is_text=True)


def _syntax_error(text: str, path: Path, message: str) -> ConfigError:
    position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    lines = _lines(text)
    if position:
        line, column = int(position[1]), int(position[2])
        message = message[: position.start()]
    else:
        line, column = len(lines), len(lines[-1]) + 1
        message = message.replace(" (at end of document)", "") + ", and the file ends"
    source = lines[line - 1] if line <= len(lines) else ""
    margin = f"  {line} | "
    caret = " " * (len(margin) + column - 1) + "^"
    return ConfigError(
        f"{path}:{line}:{column}: {message}\n{margin}{source}\n{caret}", path=path, line=line
    )


def _lines(text: str) -> list[str]:
    # Not splitlines, which also breaks at characters that TOML does not count as line ends.
    return [line.removesuffix("\r") for line in text.split("\n")]
