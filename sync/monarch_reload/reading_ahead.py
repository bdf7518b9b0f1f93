"""Code that runs ahead of a commit reads config files as the commit will leave them."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pathlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def reading_ahead(contents: Mapping[str, bytes], names: dict[str, Any]) -> Iterator[None]:
    """This thread finds `contents` (by real path) when it opens these files to read them.

    Other threads find what is on disk. `names` are the builtins of what runs.
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

    # Under both names: pathlib and codecs use the one, everybody else the other.
    builtins.open, io.open, names["open"] = open_ahead, open_ahead, open_ahead
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 has it by a third name
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
    """A file without a name that holds the data; whoever opens it closes it."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        descriptor = os.dup(file.fileno())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
