"""Config files, and the statements that name them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator

from monarch_reload.source.statements import Statement

SUFFIXES = (".toml", ".json", ".yaml", ".yml", ".ini", ".cfg")


def is_config(path: str) -> bool:
    """Whether a file is of a kind that code reads its settings from."""
    return path.endswith(SUFFIXES)


_NAMED = re.compile(rb"""["']([^"'\n{}]+\.(?:toml|json|ya?ml|ini|cfg))["']""")


def named_in(text: bytes, folders: Iterable[str]) -> Iterator[str]:
    """The existing config files that a source names, looked for in `folders`."""
    names = {os.fsdecode(match) for match in _NAMED.findall(text)}
    for folder in folders if names else ():
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(path):
                yield path


def naming(statements: Iterable[Statement], files: Collection[str]) -> frozenset[int]:
    """Which statements name one of the files, by its last part."""
    last = {os.path.basename(path) for path in files}
    return frozenset(
        index
        for index, statement in enumerate(statements)
        if any(name in statement.text for name in last)
        and any(
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and os.path.basename(node.value) in last
            for node in ast.walk(statement.node)
        )
    )
