"""Procs with distributed tensors, shared by the tests of a module: torch takes a while to
import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from monarch.actor import ProcMesh, this_host


@pytest.fixture(autouse=True)
def leaves_nothing(leaves_no_client: None, no_fault: None) -> None:
    """The procs stay until the module ends, and what is left behind is looked for then."""


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """Two procs, along "gpus"."""
    mesh = this_host().spawn_procs({"gpus": 2})
    yield mesh
    mesh.stop().get()


@pytest.fixture(scope="module")
def four() -> Iterator[ProcMesh]:
    """Two by two procs."""
    mesh = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    yield mesh
    mesh.stop().get()


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[Any]:
    """Their device mesh, active."""
    with procs.activate():
        yield procs._device_mesh
