"""Figures that tests print as JSON lines, which no test compares with a limit."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Emit = Callable[..., None]


@pytest.fixture
def emit(capsys: pytest.CaptureFixture[str]) -> Emit:
    def write(metric: str, value: float, unit: str, **more: object) -> None:
        line = {"metric": metric, "value": round(value, 4), "unit": unit, **more}
        with capsys.disabled():
            print("\n" + json.dumps(line), flush=True)

    return write
