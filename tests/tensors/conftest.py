"""Procs with distributed tensors, shared by the tests of a module: torch takes a while to
import. They begin with it; those that tests start for themselves import it as they need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from monarch.actor import ProcMesh, this_host
from monarch.tensors.client.ambient import MAIN, Activation, ambient

WITH_TORCH = ("monarch.tensors.worker.worker",)


@pytest.fixture(autouse=True)
def leaves_nothing(leaves_no_client: None, no_fault: None) -> Iterator[None]:
    """The procs stay until the module ends, and what is left behind is looked for then. A mesh that
    is still active would take the next test's tensors."""
    yield
    left, stream = ambient.mesh, ambient.stream
    Activation(mesh=None, stream=MAIN)
    assert (left, stream) == (None, MAIN)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """Two procs, along "gpus"."""
    mesh = this_host().spawn_procs({"gpus": 2}, preload=WITH_TORCH)
    yield mesh
    mesh.stop().get()


@pytest.fixture(scope="module")
def four() -> Iterator[ProcMesh]:
    """Two by two procs."""
    mesh = this_host().spawn_procs({"hosts": 2, "gpus": 2}, preload=WITH_TORCH)
    yield mesh
    mesh.stop().get()


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[Any]:
    """Their device mesh, active."""
    with procs.activate():
        yield procs._device_mesh
