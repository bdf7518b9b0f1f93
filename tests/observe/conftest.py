"""Gives processes time to answer: on a loaded machine they are slow, not silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_SECONDS = 60.0


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Of visits, and of the host inside this program. What is said of those that are silent is
    tested on looks that are made up."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LOOK_SECONDS", "_DRAIN_SECONDS"):
            patch.setattr(f"monarch.runtime.hosts.host_desk.{name}", _SECONDS)
        for name in ("_CLIENT_SECONDS", "_STACKS_SECONDS"):
            patch.setattr(f"monarch.observe.visit.{name}", _SECONDS)
        patch.setattr("monarch.runtime.hosts.asking._SECONDS", _SECONDS)
        yield
