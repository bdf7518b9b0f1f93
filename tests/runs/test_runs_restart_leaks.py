"""A run that is begun again and again in new procs uses no more than after its first few."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from monarch.actor import shutdown_context
from monarch.job import ProcessJob
from monarch.runs import LineDisplay, Record
from monarch.runs.record.telemetry import RunTelemetry
from monarch.runs.recover.recovery import StepMade, procs_to_lose, with_restarts
from monarch.runs.recover.restarts import Restarts
from tests.actors import Echo
from tests.support import wait_for

NUM_RESTARTS = 20
NUM_WARM = 3


class Use(NamedTuple):
    """Of the client and the hosts together."""

    descriptors: int
    threads: int
    segments: int


def use_of(processes: list[psutil.Process]) -> Use:
    segments = 0
    for one in processes:
        lines = Path(f"/proc/{one.pid}/maps").read_text().splitlines()
        segments += len({line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line})
    return Use(
        sum(one.num_fds() for one in processes),
        sum(one.num_threads() for one in processes),
        segments,
    )


class Silent(LineDisplay):
    def __init__(self) -> None: ...

    def message(self, text: str) -> None: ...


@pytest.mark.long
@pytest.mark.timeout(180)
def test_restarts_leave_no_connection_thread_or_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once left a connection to each host, open at both ends: the telemetry of a death was
    gathered over new ones."""
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 2})
    try:
        hosts = job.state(cached_path=None).trainers
        processes = [psutil.Process(), *(psutil.Process(host.pid) for host in job.hosts)]
        record = Record(tmp_path / "run", Silent())
        record.telemetry = RunTelemetry(record.folder)
        uses: list[Use] = []

        def attempt(step_made: StepMade) -> None:
            with procs_to_lose(hosts, 1, "ranks") as procs:
                echo = procs.spawn("echo", Echo)
                pids = [pid for _, pid in echo.pid.call().get().items()]
                step_made(len(uses) + 1)
                if len(uses) == NUM_RESTARTS:
                    return
                uses.append(use_of(processes))
                os.kill(pids[0], 9)
                echo.pid.call().get(timeout=30.0)
            raise AssertionError("a rank was killed, and answered")

        restarts = Restarts(NUM_RESTARTS + 1)
        restarts.next_wait_seconds = lambda now: 0.0  # type: ignore[method-assign]
        with_restarts(attempt, restarts, record)
        telemetry = record.telemetry
        wait_for(lambda: not telemetry._writing.locked(), 10.0)
        before, after = uses[NUM_WARM], uses[-1]
        assert after.descriptors <= before.descriptors + 2, uses
        assert after.threads <= before.threads + 2, uses
        assert after.segments <= before.segments, uses
    finally:
        shutdown_context().get(timeout=30.0)
        job.kill()
