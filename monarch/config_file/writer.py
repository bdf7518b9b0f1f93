"""Write a config as the text of a TOML file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from monarch.config_file.keys import leaves
from monarch.config_file.live import live_keys
from monarch.config_file.notes import Note, notes_of
from monarch.config_file.origin import Origin
from monarch.config_file.types import to_toml_value

_WIDTH = 80


def to_toml(config: Any, origins: Mapping[str, Origin] | None = None) -> str:
    """Write a config as TOML that loads to an equal one. Origins become comments."""
    tables: dict[str, list[str]] = {}
    for key, value in leaves(config):
        table, _, name = key.rpartition(".")
        line = f"{name} = {to_toml_value(value)}"
        if origins and key in origins:
            line += f"  # {_on_a_line(origins[key].text)}"
        tables.setdefault(table, []).append(line)
    tops = tables.pop("", [])
    parts = [tops, *([f"[{table}]", *lines] for table, lines in tables.items())]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def to_commented_toml(config: Any, *, leave_out: str = "") -> str:
    """Return the config as TOML with the notes on its keys, within 80 columns where possible.
    Tables whose names begin with ``leave_out`` are omitted.
    """
    notes, live = notes_of(type(config)), set(live_keys(type(config)))
    tables: dict[str, list[str]] = {}
    for key, value in leaves(config):
        table, _, name = key.rpartition(".")
        if leave_out and table.startswith(leave_out):
            continue
        note = notes[key]
        if key in live:
            note = note._replace(text=f"{note.text} (live)".lstrip())
        lines = tables.setdefault(table, [])
        if note.heading and lines:
            lines.append("")
        lines += _lines(f"{name} = {to_toml_value(value)}", note)
    tops = tables.pop("", [])
    parts = [tops] if tops else []
    for table, lines in tables.items():
        about = [*_comment(notes[table].heading), *_comment(notes[table].text)]
        parts.append([*about, f"[{table}]", *lines])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _lines(assignment: str, note: Note) -> Iterator[str]:
    yield from _comment(note.heading)
    beside = f"{assignment}  # {_on_a_line(note.text)}"
    if not note.text:
        yield assignment
    elif len(beside) <= _WIDTH:
        yield beside
    else:
        yield from _comment(note.text)
        yield assignment


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(_on_a_line(text), _WIDTH - 2)]


def _on_a_line(text: str) -> str:
    # A comment may hold neither line breaks nor control characters; an override may.
    return "".join(c if c.isprintable() else " " for c in text)
