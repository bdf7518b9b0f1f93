"""Fixtures for several tests of the runtime."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.runtime.lone_agent import LoneAgent


@pytest.fixture
def agent() -> Iterator[LoneAgent]:
    folder = tempfile.mkdtemp(dir="/tmp")
    agent = LoneAgent(folder)
    yield agent
    agent.close()
    shutil.rmtree(folder)
