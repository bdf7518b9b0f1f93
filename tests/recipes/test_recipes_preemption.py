"""A host whose end is announced: the run saves before it goes, and goes on when it is back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runs import Record
from monarch.runs.recover.allocation import RunAllocation
from monarch_recipes import ddp
from tests.support import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_STEPS = 11
WARNED_AFTER, GONE_AFTER = 3, 5
GRACE_SECONDS = 4


class Preempting:
    """A display that has the second host be announced to end after a step, and waits for its end
    after another."""

    def __init__(self, job: ProcessJob) -> None:
        self.job = job
        self.host = job.hosts[1]
        self.said: list[str] = []
        self.record: Record

    def message(self, text: str) -> None:
        self.said.append(text)

    alarm = message

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if step == WARNED_AFTER and self.host.is_running:
            os.kill(self.host.pid, signal.SIGUSR1)
            wait_for(lambda: self.record.is_save_wanted, what="the warning")
        if step == GONE_AFTER:
            wait_for(lambda: not self.host.is_running, what="the end of the host")


def test_a_preempted_host_costs_the_steps_since_its_warning(tmp_path: Path) -> None:
    job = ProcessJob({"trainers": 2}, env={"MONARCH_GRACE_SECONDS": str(GRACE_SECONDS)})
    try:
        path = tmp_path / "state.json"
        hosts = job.state(str(path)).trainers
        display = Preempting(job)
        record = display.record = Record(tmp_path / "run", display, procs_per_host=1)

        def move(job: Any, num_hosts: int) -> HostMesh:
            raise AssertionError("there is no other allocation")

        record.allocation = RunAllocation(
            job, "trainers", path, move=move, tell=record.message
        )  # fmt: skip
        config = ddp.DDPConfig(num_channels=4, num_epochs=1, checkpoint_every=0, device="cpu")
        outcome = ddp.run(config, hosts, record)
        lines = (record.folder / "events.jsonl").read_text().splitlines()
        events = list(map(json.loads, lines))
        told = {event["kind"]: event for event in events}
        assert outcome.step == NUM_STEPS
        assert outcome.num_restarts == 1
        assert "trainers1 ends in 4 s: it is taken away; saving" in told["warned"]["text"]
        saved = [event["step"] for event in events if event["kind"] == "saved"]
        assert saved == [WARNED_AFTER, NUM_STEPS]
        assert told["resumed"]["step"] == WARNED_AFTER
        assert "brought up again" in "\n".join(display.said)
        assert told["respawned"]["step"] == WARNED_AFTER + 1
    finally:
        job.kill()
