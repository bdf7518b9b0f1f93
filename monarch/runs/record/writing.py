"""Errors of writing, for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from monarch.errors import JobError


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn errors of the operating system in this block into a readable ``JobError``."""
    try:
        yield
    except OSError as error:
        raise JobError(f"cannot write {what}: {error.strerror or error}") from error
