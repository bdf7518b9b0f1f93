"""In-process hosts keep the promises of real ones: the same tests are run in both.

A module that imports the tests of another one and this fixture runs them once more, within a
world of ``monarch.testing``. Left out are only those about processes as such.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from monarch.actor import SupervisionError
from monarch.testing import in_process

__all__ = ["in_a_world"]


@pytest.fixture(autouse=True)
def in_a_world() -> Iterator[None]:
    # The tests look at faults by themselves; one may arrive while its world ends.
    with contextlib.suppress(SupervisionError), in_process() as world:
        yield
        world.faults.clear()
