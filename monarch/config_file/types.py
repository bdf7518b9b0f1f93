"""The types that a config may have, and the conversion of TOML values and plain text to them."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from monarch.config_file.toml_text import loads

NONE = "none"
"""TOML has no null; this text stands for it where a key may be None."""

_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
    type(None): f'"{NONE}"',
}
_PLURALS = {bool: "booleans", int: "integers", float: "numbers", str: "strings", Path: "paths"}


class Mismatch(Exception):
    """A value does not have the expected type. Both are described in words."""

    def __init__(self, expected: str, got: str, suggestion: str | None = None) -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got
        self.suggestion = suggestion


def is_config(hint: Any) -> bool:
    """Return whether a type is a dataclass, that is a table of further keys."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def describe(hint: Any) -> str:
    """Return a type in the words of a message: `an integer`, `a list of strings`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(f"'{choice}'" for choice in arguments)
    if _is_union(hint):
        return " or ".join(describe(argument) for argument in arguments)
    if origin in (list, tuple) and (origin is list or arguments[-1] is ...):
        return f"a list of {_PLURALS.get(arguments[0], 'values')}"
    if origin is dict:
        return f"a table of {_PLURALS.get(arguments[1], 'values')}"
    if origin is tuple:
        return f"a list of {len(arguments)} values"
    return _NAMES.get(hint, str(hint))


def convert(value: Any, hint: Any) -> Any:
    """Return `value`, as TOML has it, converted to the type `hint`. Raises Mismatch if it does not
    fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        return _choice(value, hint)
    if _is_union(hint):
        return _member(value, hint)
    if origin is dict and isinstance(value, dict):
        return {key: convert(item, arguments[1]) for key, item in value.items()}
    if origin is list and isinstance(value, list):
        return [convert(item, arguments[0]) for item in value]
    if origin is tuple and isinstance(value, list):
        item_hints = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(item_hints) == len(value):
            return tuple(convert(item, h) for item, h in zip(value, item_hints, strict=True))
    if hint is type(None) and value in (None, NONE):
        return None
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise Mismatch(describe(hint), _shown(value))


def parse_text(text: str, hint: Any) -> Any:
    """Parse the text of an override or a variable as a `hint`; return the value.

    The text may be written as in TOML, or plainly: strings without quotes, lists without brackets.
    Raises Mismatch if it does not fit.
    """
    readings: list[Any] = []
    for candidate in (text, f"[{text}]", text.lower()):
        try:
            document = loads(f"value = {candidate}")
        except ValueError:
            continue
        # A line break in the text could have begun a second key.
        if len(document) == 1:
            readings.append(document["value"])
    if text.lower() == NONE:
        readings.append(None)
    readings += [text, [part.strip() for part in text.split(",")]]
    for reading in readings:
        try:
            return convert(reading, hint)
        except Mismatch:
            continue
    try:
        return convert(text, hint)
    except Mismatch as mismatch:
        raise Mismatch(mismatch.expected, f"'{text}'", mismatch.suggestion) from None


def to_toml_value(value: Any) -> str:
    """Return a value of a config as TOML writes it."""
    if value is None:
        return json.dumps(NONE)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(to_toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        items = [f"{_key(key)} = {to_toml_value(item)}" for key, item in value.items()]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    # JSON's strings are TOML's, but for one character that TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _choice(value: Any, hint: Any) -> Any:
    choices = get_args(hint)
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    raise Mismatch(describe(hint), _shown(value), near[0] if near else None)


def _member(value: Any, hint: Any) -> Any:
    members = get_args(hint)
    if value in (None, NONE) and type(None) in members:
        return None
    suggestion = None
    for member in members:
        try:
            return convert(value, member)
        except Mismatch as mismatch:
            suggestion = suggestion or mismatch.suggestion
    raise Mismatch(describe(hint), _shown(value), suggestion)


def _shown(value: Any) -> str:
    kind = {bool: "boolean", int: "integer", float: "number", str: "string"}.get(type(value))
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"the list {to_toml_value(value)}"
    return f"the {kind} {to_toml_value(value)}" if kind else f"the {type(value).__name__} {value}"
