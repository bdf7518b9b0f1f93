"""An object of nested dataclasses as a config of dotted keys, whose values are laid over it.

TorchTitan 0.3 has no config file: its config is a tree of dataclasses that a function returns. Of
each a class is made here that has those of its fields that a TOML file can hold, with the object's
values as defaults. So unknown keys and wrong types are found as in every config.
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
    """A field of a section: its type and its default, or the section that it is."""

    name: str
    kind: Any
    default: Any
    is_live: bool = False


class Section(NamedTuple):
    """What a class is made of; ``source`` is the class that it speaks for."""

    name: str
    source: type[Any]
    keys: tuple[Key, ...]


def section_of(
    made: Any, live_keys: Collection[str], leave_out: Collection[str] = (), above: str = ""
) -> Section:
    """The keys of an object that a file can hold, nested objects taken apart."""
    hints = get_type_hints(type(made))
    keys: list[Key] = []
    for field in dataclasses.fields(made):
        key, value = f"{above}{field.name}", getattr(made, field.name)
        if key in leave_out or field.name.startswith("_"):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = section_of(value, live_keys, leave_out, f"{key}.")
            if inner.keys:
                keys.append(Key(field.name, inner, None))
        elif _fits_a_file(value, hints[field.name]):
            keys.append(Key(field.name, hints[field.name], value, key in live_keys))
    return Section(type(made).__qualname__, type(made), tuple(keys))


def fields_for(section: Section) -> list[tuple[str, Any, Any]]:
    """The fields of a dataclass, as `dataclasses.make_dataclass` takes them."""
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
            made = dataclasses.field(default_factory=functools.partial(copy.deepcopy, key.default))
            fields.append((key.name, key.kind, made))
    return fields


def lay_over(made: Any, values: Any) -> None:
    """Set the values of a config on the object that its class was made for."""
    for field in dataclasses.fields(values):
        if not hasattr(made, field.name):
            continue  # A key of the recipe's own.
        value = getattr(values, field.name)
        if dataclasses.is_dataclass(value):
            lay_over(getattr(made, field.name), value)
        else:
            setattr(made, field.name, copy.deepcopy(value))


def check_again(made: Any, keys: Collection[str], leave_out: Collection[str] = ()) -> None:
    """Run the checks that an object's dataclasses make when they are made, the inner ones first.

    Raises ConfigError, at the first of the ``keys`` that the message names, if it names one.
    """
    for each in _inside(made, leave_out):
        check = getattr(each, "__post_init__", None)
        try:
            if check is not None:
                check()
        except (AssertionError, NotImplementedError, ValueError) as error:
            key = next((key for key in keys if key in str(error)), None)
            raise ConfigError(f"TorchTitan refuses it: {error}", key=key) from error


def _inside(made: Any, leave_out: Collection[str]) -> Iterator[Any]:
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        for each in value if isinstance(value, list) else [value]:
            if (
                field.name not in leave_out
                and dataclasses.is_dataclass(each)
                and not isinstance(each, type)
            ):
                yield from _inside(each, ())
    yield made


def _fits_a_file(value: Any, hint: Any) -> bool:
    """Whether a file can hold every value of that type, and holds this one."""
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
