"""Files that are written whole or not at all, however the process that writes them ends."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OF_PEOPLE = 0o666
"""The mode of a file that belongs to a person's project or run; their umask applies."""


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all, as ``replacing`` does."""
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    with replacing(path, mode=mode) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = 0o600, is_durable: bool = False, beside: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a file to write into. It replaces ``path`` at the end of the block, unless that raises.

    The content then survives the end of the process. With ``is_durable`` it is on the disk before
    it replaces the old content, so that it also survives a crash of the machine; `sync_folder` does
    the same for the file's name. ``beside`` is the new file's path until then. By default its name
    is random, so that no other program can have made that file before. An ``OSError`` names
    ``path``.
    """
    unfinished = beside or path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, _FLAGS, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
    except OSError as error:
        if error.filename in (None, str(unfinished)):  # The error of a full disk names no file.
            error.filename, error.filename2 = str(path), None
        raise


def sync_folder(folder: Path) -> None:
    """Write the changed names of a folder's files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
