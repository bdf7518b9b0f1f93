"""Gives processes time to answer: on a loaded machine they are slow, not silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.observe.visit import MeshVisit
from monarch.runtime.hosts.host_desk import HostDesk

_SECONDS = 60.0


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """Of visits, and of the host inside this program. What is said of those that are silent is
    tested on looks that are made up."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("look_seconds", "drain_seconds"):
            patch.setattr(HostDesk, name, _SECONDS)
        for name in ("host_seconds", "client_seconds", "stacks_seconds"):
            patch.setattr(MeshVisit, name, _SECONDS)
        yield
