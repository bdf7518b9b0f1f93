"""An author's folder and a host's replica of it, both empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_sync.replicas.replica import Replica


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(tmp_path / "replica")
    yield replica
    replica.close()
