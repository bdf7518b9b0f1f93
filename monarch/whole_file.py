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
"""The mode of a file that belongs to a person's project or run: as their umask has it."""


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """As ``replacing``, for content that is in memory."""
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    with replacing(path, mode=mode) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = 0o600, is_durable: bool = False, beside: Path | None = None
) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of ``path`` where the block ends well.

    Until then the old content stays. With ``is_durable`` the new one is on the disk before it takes
    that place, as what must outlive the machine's end needs (`sync_folder` then does the same for
    its name); without, it outlives that of the process. ``beside`` is the new file's name until
    then; else no other program can have prepared it. An ``OSError`` names ``path``.
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
        if error.filename in (None, str(unfinished)):  # That of a full disk names no file.
            error.filename, error.filename2 = str(path), None
        raise


def sync_folder(folder: Path) -> None:
    """Have names that were changed in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
