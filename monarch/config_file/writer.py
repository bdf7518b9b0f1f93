"""A config as the text of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.config_file.keys import leaves
from monarch.config_file.origin import Origin
from monarch.config_file.types import to_toml_value

__all__ = ["to_toml"]


def to_toml(config: Any, origins: Mapping[str, Origin] | None = None) -> str:
    """Write a config as TOML that loads to an equal one. Origins become comments."""
    tables: dict[str, list[str]] = {}
    for key, value in leaves(config):
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
