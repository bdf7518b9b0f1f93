"""Files that are written whole or not at all, whatever stops the writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monarch.errors import JobError


def write_whole(path: Path, content: str | bytes) -> None:
    """The old content stays until the new one is whole. Raises ``OSError``."""
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Within, what the operating system refuses becomes a ``JobError`` that a person can read."""
    try:
        yield
    except OSError as error:
        raise JobError(f"cannot write {what}: {error.strerror or error}") from error
