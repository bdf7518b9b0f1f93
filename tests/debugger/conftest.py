"""Calls stand as at a terminal, and no breakpoint outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from monarch.config import configured
from monarch.runtime import process
from tests.debugger.held_actors import Stepper


@pytest.fixture(autouse=True)
def waits() -> Iterator[None]:
    with configured(breakpoint="wait"):
        yield
    agent: Any = process.current() if process.is_bootstrapped() else None
    if agent is not None:
        agent.host_agent._later_breaks._places.clear()


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 4})


@pytest.fixture
def steppers(procs: ProcMesh) -> Any:
    """All of them up, so that everything that they are asked is answered at once."""
    made = procs.spawn("stepper", Stepper)
    made.echo.call(0).get(timeout=60)
    return made
