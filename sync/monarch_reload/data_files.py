"""Config files, and the statements that name them."""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import os
import pathlib
import re
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from monarch_reload.source.statements import Statement

SUFFIXES = (".toml", ".json", ".yaml", ".yml", ".ini", ".cfg")


def is_config(path: str) -> bool:
    """Return whether a file is of a kind that code reads its settings from."""
    return path.endswith(SUFFIXES)


_NAMED = re.compile(rb"""["']([^"'\n{}]+\.(?:toml|json|ya?ml|ini|cfg))["']""")


def named_in(text: bytes, folders: Iterable[str]) -> Iterator[str]:
    """Yield the config files that a source mentions and that exist in one of the `folders`."""
    names = {os.fsdecode(match) for match in _NAMED.findall(text)}
    for folder in folders if names else ():
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(path):
                yield path


def naming(statements: Iterable[Statement], files: Collection[str]) -> frozenset[int]:
    """Return the indexes of the statements that mention one of the files, by its base name, in a
    string."""
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


@contextlib.contextmanager
def reading_ahead(contents: Mapping[str, bytes], names: dict[str, Any]) -> Iterator[None]:
    """In this block, let this thread read the files in `contents`, by real path, as if they had
    these contents. Other threads read what is on disk.

    `names` are the builtins of the code that runs.
    """
    ahead = {path: data for path, data in contents.items() if not _is_on_disk(path, data)}
    if not ahead:
        yield
        return
    thread = threading.get_ident()
    real_open, real_io_open = builtins.open, io.open

    def open_ahead(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        data = None
        if threading.get_ident() == thread and not set(mode) & set("wax+"):
            with contextlib.suppress(TypeError, ValueError):
                data = ahead.get(os.path.realpath(os.fsdecode(os.fspath(file))))
        if data is None:
            return real_io_open(file, mode, *args, **kwargs)
        return real_io_open(_descriptor_of(data), mode, *args, **kwargs)

    # Under both names: pathlib and codecs use `io.open`, other code the builtin.
    builtins.open, io.open, names["open"] = open_ahead, open_ahead, open_ahead
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 has a third name for it
    if accessor is not None:
        accessor.open = staticmethod(open_ahead)
    try:
        yield
    finally:
        builtins.open, io.open, names["open"] = real_open, real_io_open, real_open
        if accessor is not None:
            accessor.open = real_io_open


def _is_on_disk(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def _descriptor_of(data: bytes) -> int:
    """Return the descriptor of a nameless file with the data; the code that opens it closes it."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        descriptor = os.dup(file.fileno())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
