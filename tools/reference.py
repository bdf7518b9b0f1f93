"""Writes docs/reference.md: every key of monarch.toml and of each recipe, from the code.

python tools/reference.py           writes it
python tools/reference.py --check   exits with 1 if the file is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from monarch.cli.project import ProjectFile
from monarch.config import Settings
from monarch.config_file import live_keys, load_config
from monarch.config_file.keys import leaves
from monarch.config_file.notes import Note, notes_of
from monarch.config_file.types import to_toml_value
from monarch.runs.recipe.recipe import built_in_recipes, find_recipe

PAGE = Path(__file__).resolve().parent.parent / "docs/reference.md"
_HEAD = """# Reference of the keys

Made from the code by `make reference`; do not edit. The same, as files to begin with:
`monarch init`, `monarch recipe show RECIPE --toml`, `monarch recipe cp RECIPE my.toml`.

Keys of a recipe are given in a TOML file (`monarch run ddp --config ddp.toml`), in the environment
(`MONARCH_CONFIG_LEARNING_RATE=1e-3`), or on the command line (`learning_rate=1e-3`), the later over
the earlier. `"none"` stands for nothing, which TOML lacks. Those marked (live) may be edited in the
file while a run goes on.
"""


_SETTINGS = """Of the runtime. `configure(heartbeat_seconds=2.0)` changes one in a program, as does
`MONARCH_HEARTBEAT_SECONDS=2.0` in the environment. Names that end in `_seconds` and `_bytes` say
their unit; others are counts, texts, or yes and no.
"""


def reference() -> str:
    """Return the text of docs/reference.md."""
    parts = [_HEAD, "## monarch.toml\n", _table(ProjectFile)]
    for name in built_in_recipes():
        recipe = find_recipe(name)
        parts += [f"## {name}\n", f"{recipe.summary}\n", _table(recipe.config_class)]
    parts += ["## Settings\n", _SETTINGS, _settings_table()]
    return "\n".join(parts)


def _settings_table() -> str:
    return _rows(notes_of(Settings), asdict(Settings()).items(), set())


def _table(config_class: type[Any]) -> str:
    values = leaves(load_config(config_class).config)
    return _rows(notes_of(config_class), values, set(live_keys(config_class)))


def _rows(notes: Mapping[str, Note], values: Iterable[tuple[str, Any]], live: set[str]) -> str:
    rows = ["| key | default | |", "| --- | --- | --- |"]
    last = ""
    for key, value in values:
        table, note = key.rpartition(".")[0], notes[key]
        headings = [note.heading] if note.heading else []
        if table != last:
            last = table
            if table:  # A table of a person's own names has no name itself.
                headings.insert(0, f"[{table}] {notes[table].text}".strip())
        rows += [f"| **{_cell(heading)}** | | |" for heading in headings]
        text = f"{note.text} (live)".strip() if key in live else note.text
        rows.append(f"| `{key}` | `{_cell(to_toml_value(value))}` | {_cell(text)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main(arguments: list[str]) -> int:
    """Write docs/reference.md, and return the exit status.

    With ``--check``, nothing is written: the status is 1 if the file is out of date.
    """
    if arguments == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == reference():
            return 0
        sys.stderr.write(f"{PAGE.name} is out of date: `make reference` writes it anew\n")
        return 1
    PAGE.write_text(reference(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
