"""What a pusher of many hosts and procs waits for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.cli.large_files import LargeFiles
from monarch.cli.project import may_come_up
from monarch.cli.sync.output import Lines
from monarch.cli.sync.pusher import Pusher, PushOptions
from monarch.cli.terminal.terminal import Terminal
from monarch.errors import JobError
from monarch.job import DEFAULT_JOB_PATH, JobState, JobTrait, ProcessJob
from monarch.job.places import record_of
from monarch.runtime.answers import Response, collect
from monarch.runtime.hosts import asking
from monarch.runtime.hosts.asking import NOBODY_THERE
from monarch.runtime.promise import Promise
from monarch.tools.network import free_port
from monarch_sync import SyncReport, Workspace
from tests.support import Program, wait_for


def test_many_that_are_silent_are_waited_for_together() -> None:
    """One after the other they would take longer than any test may."""
    asked: dict[int, Promise[Response[int]]] = {number: Promise() for number in range(2_000)}
    asked[0].set(Response(3))
    asked[1_999].set(Response(4))
    asked[7].set(Response(None, error="it is ending"))
    found = collect(asked, 0.2, "late")
    assert {uid: told.answer for uid, told in found.items() if not told.error} == {0: 3, 1_999: 4}
    assert (found[7].error, found[8].error) == ("it is ending", "late")


LONG = 600.0
"""Longer than a test may take."""


class Standing(JobTrait):
    """An allocation of somebody else's, of which nobody here knows whether it runs."""

    def _create(self, client_script: str | None) -> None: ...

    def _state(self) -> JobState:
        raise NotImplementedError

    def _kill(self) -> None: ...

    def can_run(self, spec: JobTrait) -> bool:
        return True

    def urls(self) -> list[str]:
        return [f"tcp://127.0.0.1:{free_port()}"]


def test_a_dead_host_of_a_job_that_counts_as_running_costs_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Standing()
    assert not may_come_up(job)
    (tmp_path / ".monarch").mkdir(mode=0o700)
    note = tmp_path / DEFAULT_JOB_PATH
    job.dump(note)
    assert may_come_up(job), "it was brought up just now"
    hour_ago = time.time() - 3600
    os.utime(record_of(note), (hour_ago, hour_ago))
    (answer,) = Pusher(job, coming_up_seconds=LONG).ask().values()
    assert answer.error == NOBODY_THERE
    shutdown_context().get(timeout=20)


class Fresh(Standing):
    """An allocation that was brought up just now, of one host."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.url = f"ipc://{folder}/host"

    def urls(self) -> list[str]:
        return [self.url]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fresh]:
    """Its note says that it came up just now, whatever becomes of its host."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".monarch").mkdir(mode=0o700)
    job = Fresh(tmp_path)
    job.dump(tmp_path / DEFAULT_JOB_PATH)
    yield job
    shutdown_context().get(timeout=20)


def test_a_push_right_after_the_start_waits_for_an_agent_that_comes_up_late(
    fresh: Fresh, program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    real = asking.wait_for

    def wait(answers: Iterable[Promise[Response[Any]]], seconds: float) -> None:
        if seconds > 60.0:  # it is found not to be there, and waited for
            waits.set()
        real(answers, seconds)

    monkeypatch.setattr(asking, "wait_for", wait)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("1")
    reports: list[SyncReport] = []

    def push() -> None:
        whole = Workspace({tmp_path / "project": ""})
        options = PushOptions(LargeFiles(pytest.fail))
        pusher = Pusher(fresh, coming_up_seconds=LONG)
        reports.append(pusher.push(whole, None, Lines(Terminal()), options))

    pushing = threading.Thread(target=push)
    pushing.start()
    assert waits.wait(30.0)
    workspace = tmp_path / "copy"
    program(
        f"from monarch.actor import run_worker_loop_forever\n"
        f"run_worker_loop_forever(address={fresh.url!r})",
        WORKSPACE_DIR=str(workspace),
    )
    pushing.join(60.0)
    assert [report.ok for report in reports] == [True], reports
    assert (workspace / "a.py").read_text() == "1"


@pytest.mark.long
def test_a_push_right_after_the_start_says_that_an_agent_never_came_up(
    fresh: Fresh, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(JobError, match=NOBODY_THERE):
        Pusher(fresh, coming_up_seconds=1.0).push(
            Workspace({tmp_path: ""}),
            None,
            Lines(Terminal()),
            PushOptions(LargeFiles(pytest.fail)),
        )
    assert time.monotonic() - started >= 1.0


def test_hosts_that_have_all_followed_are_not_asked_first_until_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 2})
    job.apply()
    (tmp_path / ".monarch").mkdir(mode=0o700)
    job.dump(tmp_path / DEFAULT_JOB_PATH)  # It was brought up just now, and is waited for.
    try:
        pusher, output = Pusher(job), Lines(Terminal())
        asked: list[int] = []
        ask = pusher.ask
        monkeypatch.setattr(pusher, "ask", lambda: asked.append(1) or ask())  # type: ignore[func-returns-value]

        def push(text: str) -> int:
            (folder / "a.py").write_text(text)
            options = PushOptions(LargeFiles(pytest.fail))
            report = pusher.push(Workspace({folder: ""}), None, output, options)
            assert report.ok, str(report)
            return report.generation

        assert [push("1"), push("2"), push("2"), push("3")] == [1, 2, 2, 3]
        assert len(asked) == 1
        os.kill(job.hosts[0].pid, signal.SIGKILL)
        wait_for(lambda: pusher._num_lost > 0, what="word of its end")
        with pytest.raises(JobError, match="goes on without it"):
            push("4")
        assert len(asked) == 2
    finally:
        job.kill()
        shutdown_context().get(timeout=20)
