"""What a scheduler announces reaches those who use the hosts, in time to save."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostWarning, shutdown_context
from monarch.job import ImageSpec, KubeConfig, KubernetesJob, ProcessJob, SlurmJob
from monarch.runs.record.record import LineDisplay, Record
from monarch.runtime.entry import slurm_task
from monarch.runtime.entry.slurm_task import limit_seconds
from monarch.runtime.hosts.end_notice import EndNotice
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.actors import Echo
from tests.job.fakes.kube_server import KubeServer
from tests.job.kinds import FAKES, agent_pids
from tests.support import wait_for

SECONDS = 60.0


@pytest.fixture(autouse=True)
def leave() -> Iterator[None]:
    yield
    if is_bootstrapped():
        shutdown_context().get()


@pytest.mark.long
def test_a_pod_that_is_deleted_warns_and_goes_on_for_its_grace(faults: Any) -> None:
    server = KubeServer()
    job = KubernetesJob(
        "default", 30.0, KubeConfig.from_config(server.kubeconfig), python_exe=sys.executable,
        grace_seconds=60,
    )  # fmt: skip
    job.add_mesh("trainers", 2, image_spec=ImageSpec("python"))
    heard: queue.SimpleQueue[HostWarning] = queue.SimpleQueue()
    try:
        hosts = job.state(cached_path=None).trainers
        procs = hosts.spawn_procs()
        echo = procs.spawn("echo", Echo)
        assert echo.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
        with hosts.on_warning(heard.put):
            name = job.hosts[1].name
            server.delete_pod(name)
            warning = heard.get(timeout=SECONDS)
            assert warning == HostWarning(name, "its pod is being deleted", 60.0)
            assert str(warning) == f"{name} ends in 60 s: its pod is being deleted"
            # There is time: for a checkpoint, say.
            assert echo.echo.call(2).get(timeout=SECONDS).values() == [2, 2]
            old = next(pod for key, pod in server.pods.items() if key[1] == name)
            procs.stop().get()
            # Nothing runs there any more: the rest of the grace is not waited for.
            assert old.process is not None
            wait_for(lambda: old.process.poll() is not None, 30.0, what="the pod to end")
        # Who listens only now is told of what stands.
        assert heard.empty()
    finally:
        job.kill()
        server.close()


@pytest.mark.long
def test_a_host_of_local_processes_warns_as_one_of_a_scheduler_does(faults: Any) -> None:
    job = ProcessJob({"trainers": 2}, env={"MONARCH_GRACE_SECONDS": "60"})
    heard: queue.SimpleQueue[HostWarning] = queue.SimpleQueue()
    try:
        hosts = job.state(cached_path=None).trainers
        procs = hosts.spawn_procs()
        echo = procs.spawn("echo", Echo)
        assert echo.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
        with hosts.on_warning(heard.put):
            os.kill(job.hosts[1].pid, signal.SIGUSR1)
            warning = heard.get(timeout=SECONDS)
            assert warning == HostWarning(job.hosts[1].name, "it is taken away", 60.0)
            # There is time: for a checkpoint, say.
            assert echo.echo.call(2).get(timeout=SECONDS).values() == [2, 2]
            procs.stop().get()
            # Nothing runs there any more: the rest of the grace is not waited for.
            wait_for(lambda: not job.hosts[1].is_running, 30.0, what="the host to end")
        assert job.hosts[0].is_running
    finally:
        job.kill()


@pytest.mark.long
def test_an_idle_pod_that_is_deleted_ends_at_once() -> None:
    server = KubeServer()
    job = KubernetesJob(
        "default", 30.0, KubeConfig.from_config(server.kubeconfig), python_exe=sys.executable,
        grace_seconds=60,
    )  # fmt: skip
    job.add_mesh("trainers", 1, image_spec=ImageSpec("python"))
    try:
        job.state(cached_path=None)
        pod = next(iter(server.pods.values()))
        server.delete_pod(job.hosts[0].name)
        wait_for(lambda: pod.process is None or pod.process.poll() is not None, 15.0, "its end")
    finally:
        job.kill()
        server.close()


@pytest.mark.long
def test_slurm_warns_before_the_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}/slurm:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.chdir(tmp_path)
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=free_port(), time_limit="00:08:00")
    heard: queue.SimpleQueue[HostWarning] = queue.SimpleQueue()
    try:
        hosts = job.state(cached_path=None).a
        assert job._warning_seconds() == 120
        with hosts.on_warning(heard.put):
            [agent] = agent_pids(job)
            task = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(task, signal.SIGUSR1)
            warning = heard.get(timeout=SECONDS)
        assert warning.why == "the time limit of its Slurm job"
        with hosts.on_warning(heard.put):  # It stands: who comes late hears it, too.
            assert heard.get(timeout=SECONDS) == warning
        assert agent_pids(job) == [agent]
    finally:
        job.kill()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600), ("1:30", 90), ("1:00:00", 3600), ("2-0", 172800), ("1-01:00:05", 90005),
        ("UNLIMITED", None), ("", None),
    ],
)  # fmt: skip
def test_times_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert limit_seconds(text) == seconds


GIVES_WAY = "its Slurm job gives way to another"
UNEXPLAINED = EndNotice("Slurm has told its job to end, and does not say why", 30.0, is_last=True)


@pytest.mark.parametrize(
    ("squeue", "notice"),
    [
        ("echo 'RUNNING|NONE'", EndNotice(GIVES_WAY, 40.0, is_last=True)),
        # Until Slurm knows that the signal has reached all nodes, which takes long on busy ones.
        ("echo 'SIGNALING|NONE'", EndNotice(GIVES_WAY, 40.0, is_last=True)),
        ("echo 'RUNNING|2001-01-01T00:00:00'", EndNotice(GIVES_WAY, 0.0, is_last=True)),
        ("echo 'COMPLETING|2001-01-01T00:00:00'", None),
        ("echo 'CANCELLED|NONE'", None),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", None),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", UNEXPLAINED),
        ("kill -TERM $$", UNEXPLAINED),
        # The signal that is asked about reaches squeue, too.
        ("test -e hit && echo 'COMPLETING|NONE' && exit; touch hit; kill -TERM $$", None),
        ("exec sleep 600", UNEXPLAINED),
    ],
)
def test_what_a_host_of_slurm_makes_of_sigterm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, squeue: str, notice: EndNotice | None
) -> None:
    command = tmp_path / "squeue"
    command.write_text(f"#!/bin/sh\n{squeue}\n")
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("MONARCH_GRACE_SECONDS", "40")
    found = slurm_task._meaning(signal.SIGTERM, 10.0 if "sleep" not in squeue else 0.2)
    if "sleep" in squeue:
        notice = UNEXPLAINED._replace(seconds=39.8)
    assert found == notice


def test_the_end_that_slurm_tells_is_that_of_the_grace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm's words for a job of twenty minutes that has half a minute left."""
    command = tmp_path / "squeue"
    command.write_text(
        "#!/bin/sh\n"
        "case \"$*\" in *%L*) left='19:58';; *) left=$(date -d '+30 seconds' +%FT%T);; esac\n"
        'echo "RUNNING|$left"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = slurm_task._meaning(signal.SIGTERM)
    assert found is not None
    assert found.seconds is not None
    assert 0 < found.seconds <= 30


def test_a_run_is_asked_once_to_save(tmp_path: Path) -> None:
    record = Record(tmp_path, LineDisplay(sys.stdout))
    assert not record.is_save_wanted
    record.warned(HostWarning("n1", "the time limit of its Slurm job", 120.0))
    assert record.is_save_wanted
    assert record.take_save_wanted()
    assert not record.take_save_wanted()
    told = (tmp_path / "events.jsonl").read_text()
    assert "n1 ends in 120 s: the time limit of its Slurm job; saving" in told
