"""Keeping Ctrl-C out of the few moments in which it would leave something behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from monarch.runtime.uninterrupted import Uninterrupted

__all__ = ["deferred_interrupts"]


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A Ctrl-C inside the block takes effect at its end. Keep the block short."""
    with Uninterrupted():
        yield
