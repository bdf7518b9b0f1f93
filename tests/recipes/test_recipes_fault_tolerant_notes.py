"""What a run of replica groups has written down by the time it saves."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.actor import Channel
from monarch.observe.json_rows import json_rows
from monarch.runs import LineDisplay, Record
from monarch.runs.record.record import METRICS
from monarch_recipes.replicas.client import _next_news, _write_down
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.groups import Groups
from monarch_recipes.replicas.messages import StepMetrics


class Saves(Groups):
    """One whose groups save at once; what is there of the steps by then is in `noted`."""

    def __init__(self, event_log: EventLog, metrics: Path) -> None:
        self.event_log, self.metrics = event_log, metrics
        self.noted: list[int] | None = None

    async def ask(self, group: Any, call: Any) -> list[Any]:
        self.noted = [row["step"] for row in json_rows(self.metrics)]
        return [Path("step-2")]


def test_steps_are_written_down_before_they_are_saved(tmp_path: Path) -> None:
    """A client that is killed between the two would cost the rows: the next goes on after them."""
    record = Record(tmp_path, LineDisplay(io.StringIO()))
    port, news = Channel[Any].open()
    event_log = EventLog(1, 10, port)
    groups = Saves(event_log, tmp_path / METRICS)
    first = SimpleNamespace(save=SimpleNamespace(call=lambda history: None))
    trainers = SimpleNamespace(slice=lambda ranks: first)
    group: Any = SimpleNamespace(number=0, step=2, trainers=trainers)

    async def save() -> None:
        for step in (1, 2):
            event_log.news.send(StepMetrics(step, 10, {"loss": 1.0}))
        saving = asyncio.ensure_future(groups.save(group))
        while not saving.done():
            _write_down(await asyncio.to_thread(_next_news, news), record)
        assert await saving == Path("step-2")

    asyncio.run(save())
    assert groups.noted == [1, 2]
