"""The simulation in ``benchmarks/`` runs the code of today, and what it prints has happened."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("degree", [0, 2])
def test_every_action_ends_and_is_counted(degree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import scale

    try:
        rows = scale.run(3, degree)
    finally:
        for name in ("scale", "simulation"):
            sys.modules.pop(name, None)
    assert rows[0].action == "spawn + first call"
    assert len(rows) == 5
    for row in rows:
        assert 0 < row.cost.seconds < math.inf, row
        assert row.cost.client_messages > 0, row
