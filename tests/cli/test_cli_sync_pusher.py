"""What a pusher of many hosts and procs waits for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.cli.large_files import LargeFiles
from monarch.cli.project import may_come_up
from monarch.cli.sync import pusher
from monarch.cli.sync.output import Lines
from monarch.cli.sync.pusher import Pusher
from monarch.cli.terminal import Terminal
from monarch.errors import JobError
from monarch.job import DEFAULT_JOB_PATH, JobState, JobTrait, ProcessJob
from monarch.runtime.answers import Response
from monarch.runtime.hosts import asking
from monarch.runtime.hosts.asking import NOBODY_THERE
from monarch.runtime.promise import Promise
from monarch.tools.network import free_port
from monarch_sync import Workspace
from tests.support import wait_for


def test_many_that_are_silent_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would take longer than any test may."""
    monkeypatch.setattr(pusher, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(pusher, "_EACH_SECONDS", 0.0)
    asked: dict[int, Promise[Response]] = {number: Promise() for number in range(2_000)}
    asked[0].set(Response({"generation": 3}))
    asked[1_999].set(Response({"generation": 4}))
    asked[7].set(Response({}, error="it is ending"))
    found = pusher._bodies(asked)
    assert {uid: body for uid, body in found.items() if body} == {
        0: {"generation": 3},
        1_999: {"generation": 4},
    }


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
    os.utime(note, (hour_ago, hour_ago))
    monkeypatch.setattr(asking, "_COMING_UP_SECONDS", 600.0)  # longer than a test may take
    (answer,) = Pusher(job).ask().values()
    assert answer == {"error": NOBODY_THERE}
    shutdown_context().get(timeout=20)


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
            report = pusher.push(
                Workspace({folder: ""}), None, output, large=LargeFiles(pytest.fail)
            )
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
