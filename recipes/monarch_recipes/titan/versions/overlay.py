"""Turns an object of nested dataclasses into a config with dotted keys.

TorchTitan 0.3 has no config file: a function returns its config, a tree of dataclass objects. For
each of these a class is made here, with the fields whose values fit into a TOML file, and the
object's values as defaults. So unknown keys and wrong types are found as in every config. The
config's values are then set in the object.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from monarch.config_file import ConfigError, live
from monarch.config_file.types import Mismatch, convert

_PLAIN = (bool, int, float, str, Path, type(None))


class Key(NamedTuple):
    """A key of a section: its type and its default value.

    ``kind`` is a `Section` if the key has keys of its own, and ``default`` is None then.
    """

    name: str
    kind: Any
    default: Any
    is_live: bool = False


class Section(NamedTuple):
    """The keys of a config class, and ``source``, the dataclass that they come from."""

    name: str
    source: type[Any]
    keys: tuple[Key, ...]


def section_of(
    source: Any, live_keys: Collection[str], leave_out: Collection[str] = (), above: str = ""
) -> Section:
    """Return the section of an object: its fields that a file can hold, with nested sections.

    ``leave_out`` and ``live_keys`` are dotted keys. ``above`` is the beginning of the dotted keys
    of this section, such as "training.".
    """
    hints = get_type_hints(type(source))
    keys: list[Key] = []
    for field in dataclasses.fields(source):
        key, value = f"{above}{field.name}", getattr(source, field.name)
        if key in leave_out or field.name.startswith("_"):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = section_of(value, live_keys, leave_out, f"{key}.")
            if inner.keys:
                keys.append(Key(field.name, inner, None))
        elif _fits_a_file(value, hints[field.name]):
            keys.append(Key(field.name, hints[field.name], value, key in live_keys))
    return Section(type(source).__qualname__, type(source), tuple(keys))


def fields_for(section: Section) -> list[tuple[str, Any, Any]]:
    """Return the fields of a section, as `dataclasses.make_dataclass` takes them."""
    fields: list[tuple[str, Any, Any]] = []
    for key in section.keys:
        if isinstance(key.kind, Section):
            name = key.name.title().replace("_", "")
            inner = dataclasses.make_dataclass(f"{name}Section", fields_for(key.kind))
            inner.__doc__ = key.kind.source.__doc__
            fields.append((key.name, inner, dataclasses.field(default_factory=inner)))
        elif key.is_live:
            fields.append((key.name, key.kind, live(key.default)))
        else:
            copied = functools.partial(copy.deepcopy, key.default)
            fields.append((key.name, key.kind, dataclasses.field(default_factory=copied)))
    return fields


def lay_over(source: Any, values: Any) -> None:
    """Set the values of a config in the object that its class was made from."""
    for field in dataclasses.fields(values):
        if not hasattr(source, field.name):
            continue  # A key of the recipe, not of TorchTitan.
        value = getattr(values, field.name)
        if dataclasses.is_dataclass(value):
            lay_over(getattr(source, field.name), value)
        else:
            setattr(source, field.name, copy.deepcopy(value))


def check_again(source: Any, keys: Collection[str], leave_out: Collection[str] = ()) -> None:
    """Run the checks of an object's dataclasses again, the inner ones first.

    Raises ConfigError with the message of the check that failed; its key is the first of ``keys``
    that this message contains, or None. Fields named in ``leave_out`` are not checked.
    """
    for part in _inside(source, leave_out):
        check = getattr(part, "__post_init__", None)
        try:
            if check is not None:
                check()
        except (AssertionError, NotImplementedError, ValueError) as error:
            key = next((key for key in keys if key in str(error)), None)
            raise ConfigError(f"TorchTitan refuses it: {error}", key=key) from error


def _inside(source: Any, leave_out: Collection[str]) -> Iterator[Any]:
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        for part in value if isinstance(value, list) else [value]:
            is_object = dataclasses.is_dataclass(part) and not isinstance(part, type)
            if is_object and field.name not in leave_out:
                yield from _inside(part, ())
    yield source


def _fits_a_file(value: Any, hint: Any) -> bool:
    """Return whether a TOML file can hold this value and all values of its type."""
    if not _is_plain(hint):
        return False
    try:
        convert(list(value) if isinstance(value, tuple) else value, hint)
    except Mismatch:
        return False
    return True


def _is_plain(hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType, list, tuple, dict):
        return all(_is_plain(argument) for argument in arguments if argument is not ...)
    return hint in _PLAIN
