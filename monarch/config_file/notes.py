"""The notes beside a config's fields in its source: comments, headings, docstrings.

They are read from the source, so that they need not be written twice::

    # The optimizer.                    a heading: a comment behind a blank line
    learning_rate: float = 4e-3  # the highest
    beta: float = 0.9
    \"\"\"Of the first moment.\"\"\"         or a docstring below its field
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from monarch.config_file.types import describe, is_config


class Note(NamedTuple):
    """The comments on a config key: ``text`` for this key; ``heading`` for it and the following
    keys, up to the next heading.
    """

    text: str = ""
    heading: str = ""


def notes_of(config_class: type[Any], above: str = "") -> dict[str, Note]:
    """Return the notes of a dataclass or a struct, by dotted key. A key without a comment has an
    empty note; a table's key has the docstring of its class.
    """
    written: dict[str, Note] = {}
    for cls in reversed(config_class.__mro__):
        for name, note in _notes_in(cls).items() if _own_fields(cls) else ():
            # A field that a subclass declares again, as with another default, keeps its meaning.
            written[name] = note if note.text else note._replace(text=written.get(name, note).text)
    hints = get_type_hints(config_class)
    notes: dict[str, Note] = {}
    for name in _own_fields(config_class):
        key, hint = f"{above}{name}", hints[name]
        note = written.get(name, Note())
        if is_config(hint):
            notes[key] = Note(_own_words(hint) or note.text, note.heading)
            notes |= notes_of(hint, f"{key}.")
            continue
        if get_origin(hint) is Literal and not all(
            str(choice) in note.text for choice in get_args(hint)
        ):
            note = note._replace(text=f"{note.text}; {describe(hint)}".removeprefix("; "))
        notes[key] = note
    return notes


def _own_fields(cls: type[Any]) -> Sequence[str]:
    """Return the names of the fields that a dataclass or a struct itself defines."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return getattr(cls, "__struct_fields__", ())


def _own_words(cls: type[Any]) -> str:
    """Return the first paragraph of a class's own docstring, on one line; "" if it has none."""
    docstring = cls.__dict__.get("__doc__") or ""
    is_signature = docstring.startswith(
        f"{cls.__name__}("
    )  # `dataclasses` writes it if there is none
    return "" if is_signature else _in_a_row(inspect.cleandoc(docstring).split("\n\n")[0])


def _notes_in(cls: type[Any]) -> dict[str, Note]:
    """Return the notes on the fields that a class itself declares, from its source."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        tree = ast.parse(source).body[0]
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        return {}  # It has no source.
    if not isinstance(tree, ast.ClassDef):
        return {}
    lines = source.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("#").strip()
        for token in tokens
        if token.type == tokenize.COMMENT and not token.string.startswith("# type:")
    }
    notes = {}
    for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        parts = [comments[number] for number in range(first, last + 1) if number in comments]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            parts.append(str(after.value.value))
        over: list[str] = []
        while first > 1 and lines[first - 2].lstrip().startswith("#"):
            first -= 1
            over.insert(0, comments.get(first, ""))
        line_above = lines[first - 2].strip()
        is_heading = not line_above or line_above.startswith("class ")
        text = _in_a_row(" ".join(parts if is_heading else [*over, *parts]))
        notes[statement.target.id] = Note(text, _in_a_row(" ".join(over)) if is_heading else "")
    return notes


def _in_a_row(text: str) -> str:
    return " ".join(text.split())
