"""Hosts of a job that end too early: known at once, told with last words, brought up again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import SupervisionError
from monarch.config import configured
from monarch.errors import JobError, MonarchError
from monarch.job import LocalJob, ProcessJob, job_load
from monarch.job.places import has_state
from monarch.runtime.client_agent import client
from tests.actors import Echo
from tests.support import GUARD_FOLDER, Program, is_running, wait_for

Programs = Callable[..., Program]

SECONDS = 60.0
# Far less than what an agent is waited for that nobody knows the process of.
AT_ONCE_SECONDS = 20.0

# What each Python process does first: it waits.
_STARTS_LATE = """
import os, runpy, time
while not os.path.exists({go!r}):
    time.sleep(0.01)
runpy.run_path({guard!r})
"""


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": 2})
    yield made
    made.kill()


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    wait_for(lambda: not is_running(pid), what="the host's end")


def _how_attached(job: ProcessJob) -> list[tuple[object, ...]]:
    """Whether each host runs, and what became of the attachment to it."""
    links = client().links
    return [
        (host.is_running, link.ready.is_set, link.ready.is_set and link.ready.value)
        for host in job.hosts
        if (link := links.get(host.url)) is not None
    ]


# An end is known at once.


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_host_that_dies_while_it_starts_is_lost_at_once(
    job: ProcessJob, number: signal.Signals, tmp_path: Path, faults: Any
) -> None:
    # One that is up takes SIGTERM for an order.
    go, guard = tmp_path / "go", str(GUARD_FOLDER / "sitecustomize.py")
    (tmp_path / "sitecustomize.py").write_text(_STARTS_LATE.format(go=str(go), guard=guard))
    job.env = {"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    hosts = job.state(cached_path=None).trainers
    began = time.monotonic()
    os.kill(job.hosts[1].pid, number)
    go.touch()
    echo = hosts.spawn_procs().spawn("echo", Echo)
    with pytest.raises(SupervisionError, match=rf"trainers1 .* was killed by {number.name}"):
        echo.echo.call(1).get(timeout=SECONDS)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    with pytest.raises(MonarchError, match=rf"was killed by {number.name}"):
        hosts.initialized.get(timeout=SECONDS)


def test_a_host_that_was_dead_before_anybody_asked_is_lost_at_once(
    job: ProcessJob, faults: Any
) -> None:
    job.apply()
    _kill(job.hosts[0].pid)
    began = time.monotonic()
    hosts = job._state().trainers
    with pytest.raises(MonarchError, match=r"trainers0 .* was killed by SIGKILL"):
        hosts.initialized.get(timeout=SECONDS)
    assert time.monotonic() - began < AT_ONCE_SECONDS


def test_a_host_that_cannot_start_is_told_with_its_last_words(faults: Any) -> None:
    job = ProcessJob({"trainers": 1}, env={"MONARCH_HEARTBEAT_SECONDS": "soon"})
    try:
        hosts = job.state(cached_path=None).trainers
        with pytest.raises(MonarchError) as caught:
            hosts.initialized.get(timeout=SECONDS)
    finally:
        job.kill()
    assert "exited with status 1" in str(caught.value)
    assert "host.log:\n" in str(caught.value)
    assert "could not convert string to float: 'soon'" in str(caught.value)


def test_a_host_that_is_merely_slow_is_waited_for(
    job: ProcessJob, caplog: pytest.LogCaptureFixture, faults: Any
) -> None:
    job.apply()
    slow = job.hosts[0].pid
    os.kill(slow, signal.SIGSTOP)
    try:
        with configured(attach_timeout_seconds=0.1), caplog.at_level(logging.WARNING):
            hosts = job._state().trainers
            wait_for(
                lambda: "its process lives, so it is waited for" in caplog.text,
                what=lambda: f"a warning of {job.hosts}; {_how_attached(job)}; {caplog.text!r}",
            )
    finally:
        os.kill(slow, signal.SIGCONT)
    assert hosts.initialized.get(timeout=SECONDS) is True
    assert hosts.spawn_procs().spawn("echo", Echo).echo.call(1).get(timeout=SECONDS).values() == [
        1,
        1,
    ]


# What has ended is brought up again.


def test_repair_brings_up_what_has_ended_and_leaves_the_rest(
    job: ProcessJob, tmp_path: Path, faults: Any
) -> None:
    cache = tmp_path / "state.json"
    hosts = job.state(str(cache)).trainers
    kept, dead = (host.pid for host in job.hosts)
    procs = hosts.slice(hosts=0).spawn_procs()
    echo = procs.spawn("echo", Echo)
    assert echo.echo.call_one(1).get(timeout=SECONDS) == 1
    _kill(dead)
    assert job.num_running() == 1
    assert job.repair() == ["trainers1"]
    assert job.repair() == []
    assert job.is_running()
    assert [host.pid for host in job.hosts] != [kept, dead]
    assert job.hosts[0].pid == kept
    # Whoever knows it by the file finds the new process there.
    found = job_load(cache)
    assert isinstance(found, ProcessJob)
    assert found.hosts == job.hosts
    # The client goes on with both: the one that stayed has lost nothing.
    assert echo.echo.call_one(2).get(timeout=SECONDS) == 2
    again = hosts.spawn_procs().spawn("again", Echo)
    assert again.echo.call(3).get(timeout=SECONDS).values() == [3, 3]


def test_a_host_that_another_program_brought_up_again_is_found(
    job: ProcessJob, tmp_path: Path, program: Programs, faults: Any
) -> None:
    cache = tmp_path / "state.json"
    hosts = job.state(str(cache)).trainers
    hosts.initialized.get(timeout=SECONDS)
    _kill(job.hosts[0].pid)
    other = program(
        f"""
        from monarch.job import job_load
        print("repaired", *job_load({str(cache)!r}).repair())
        """
    )
    assert other.line("repaired") == "trainers0"
    assert other.wait() == 0, other.story()
    echo = hosts.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call(1).get(timeout=SECONDS).values() == [1, 1]


def test_what_cannot_be_repaired_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="a local job cannot bring a single host up again"):
        LocalJob().repair()
    job = ProcessJob({"trainers": 1})
    job.apply()
    copy = ProcessJob._from_data(job._to_data())
    job.kill()
    with pytest.raises(JobError, match="has been ended"):
        copy.repair()


# Whoever runs on it can read how it ends.


def test_a_job_that_is_being_ended_says_so_first(
    job: ProcessJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "state.json"
    job.state(str(cache))
    seen: list[tuple[Any, bool]] = []
    end = ProcessJob._kill

    def looking(self: ProcessJob) -> None:
        noted = job_load(cache)
        seen.append((noted.ending, noted.is_running()))
        end(self)

    monkeypatch.setattr(ProcessJob, "_kill", looking)
    job_load(cache).kill()
    [(ending, noted_as_running)] = seen
    assert ending["how"] == "ended"
    assert f"pid {os.getpid()}" in ending["by"]
    assert not noted_as_running
    assert not has_state(cache)


def test_a_job_that_another_replaces_leaves_its_file_to_that(
    job: ProcessJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "state.json"
    job.state(str(cache))
    seen: list[Any] = []
    create = ProcessJob._create

    def looking(self: ProcessJob, client_script: str | None) -> None:
        seen.append(job_load(cache).ending)
        create(self, client_script)

    monkeypatch.setattr(ProcessJob, "_create", looking)
    other = ProcessJob({"trainers": 1})
    try:
        other.state(str(cache))
        assert [ending["how"] for ending in seen] == ["replaced"]
        assert job_load(cache).ending is None
        assert job_load(cache).is_running()
    finally:
        other.kill()
    assert not has_state(cache)
