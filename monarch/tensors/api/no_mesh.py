"""`monarch.no_mesh`, and a few names for who asks what the engine does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from monarch.tensors.client.ambient import Activation, get_active_mesh


class no_mesh:
    """``with monarch.no_mesh.activate():`` torch computes in this process, as it does by itself."""

    @staticmethod
    def activate() -> Activation:
        return Activation(mesh=None)


@contextmanager
def explain() -> Iterator[list[str]]:
    """Why operations of this block were not found in the cache: a line for each, at its end.

    What misses each step makes each step slow: a new shape, a number that is part of what is done,
    a function that is pickled differently.
    """
    cache = get_active_mesh().client.cache
    cache.explain_from_now()
    lines: list[str] = []
    try:
        yield lines
    finally:
        lines += cache.explained()
