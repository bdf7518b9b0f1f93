"""What a real Slurm does to its jobs: it loses nodes, ends time, prefers others, and refuses."""

from __future__ import annotations

import os
import queue
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostWarning, shutdown_context
from monarch.errors import JobError
from monarch.job import SlurmJob, job_load
from monarch.runs import Deaths
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.actors import Echo
from tests.cli.command_folder import CommandFolder
from tests.job.kinds import MARK, agent_pids, processes_marked
from tests.job.slurm_cluster import SlurmCluster
from tests.job.sshd import Sshd
from tests.support import wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PROJECT = Path(__file__).parents[2]
AT_ONCE_SECONDS = 20.0
LONG_SECONDS = 150.0  # Slurm looks at time limits and lost nodes every half a minute or so.


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster.shared()
    cluster.clear()
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.chdir(tmp_path)
    yield cluster
    if is_bootstrapped():
        shutdown_context().get()
    cluster.clear()


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


def make(mark: str, num: int = 1, **options: Any) -> SlurmJob:
    return SlurmJob(
        {"trainers": num}, sys.executable, monarch_port=free_port(), env={MARK: mark}, **options
    )


def refusal(job: SlurmJob) -> str:
    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        job.state(cached_path=None)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    return str(caught.value)


def state_of(slurm: SlurmCluster, job_id: str) -> str:
    return slurm.said("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "invalid partition specified: nope"),
        ({"gpus_per_node": 9}, "Requested node configuration is not available"),
        ({"num": 7}, "PartitionNodeLimit"),
        ({"mem": "900G"}, "Memory specification can not be satisfied"),
        ({"time_limit": "soon"}, "Invalid --time specification"),
        ({"slurm_args": ["--constraint=h100"]}, "Invalid feature specification"),
        ({"slurm_args": ["--no-such-option"]}, "unrecognized option"),
        ({"partition": "brief", "time_limit": "1:00:00"}, "PartitionTimeLimit|time limit"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(
    slurm: SlurmCluster, mark: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobError, match=words):
        make(mark, **options).state(cached_path=None)
    assert not slurm.said("squeue", "-h")


def test_a_python_that_is_not_there_is_told_of_at_once(slurm: SlurmCluster) -> None:
    job = SlurmJob({"a": 1}, "/nowhere/python", monarch_port=free_port())
    told = refusal(job)
    assert "is FAILED" in told
    assert "/nowhere/python" in told
    assert not slurm.said("squeue", "-h")


def test_what_a_doctor_says_of_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    text = '[job]\nkind = "slurm"\nhosts = {{ t = 2 }}\n[job.slurm]\n{}\n'
    folder.write("monarch.toml", text.format('partition = "nope"'))
    told = " ".join(folder.monarch("doctor", status=1).split())
    assert "there is no partition 'nope'. There are: debug, low, urgent, brief" in told
    folder.write("monarch.toml", text.format("gpus_per_node = 9"))
    told = " ".join(folder.monarch("doctor", status=1).split())
    assert "it would refuse the job" in told
    assert "Requested node configuration is not available" in told
    folder.write("monarch.toml", text.format("gpus_per_node = 4"))
    assert "it would take the job" in folder.monarch("doctor")
    assert not slurm.said("squeue", "-h")


def test_gpus_that_are_asked_for_are_those_that_procs_see(slurm: SlurmCluster, mark: str) -> None:
    job = make(mark, gpus_per_node=2)
    try:
        job.state(cached_path=None).trainers.initialized.get(timeout=60)
        [agent] = agent_pids(job)
        assert b"CUDA_VISIBLE_DEVICES=0,1" in Path(f"/proc/{agent}/environ").read_bytes()
    finally:
        job.kill()


def test_a_job_with_a_program_of_its_own_ends_with_that(
    slurm: SlurmCluster, mark: str, tmp_path: Path
) -> None:
    port = free_port()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom monarch.job import SlurmJob\nfrom tests.actors import Echo\n"
        f"job = SlurmJob({{'a': 2}}, sys.executable, monarch_port={port})\n"
        "echo = job.state().a.spawn_procs().spawn('echo', Echo)\n"
        "print('answers', *echo.echo.call(7).get().values())\n"
    )
    env = {"PYTHONPATH": str(PROJECT), MARK: mark}
    job = SlurmJob({"a": 2}, sys.executable, monarch_port=port, env=env)
    job.apply(str(script))
    wait_for(lambda: not job._look().is_live, 60.0, what="the program's end")
    # Slurm says "COMPLETING" until all nodes have told it of their ends.
    wait_for(
        lambda: job._look().state == "COMPLETED",
        60.0,
        what=lambda: f"{job._look().state}: {job._last_words()}",
    )
    assert "answers 7 7" in Path(f"{job._logs}.out").read_text()


def test_its_nodes_are_reached_through_one_machine(
    slurm: SlurmCluster, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "sshd").mkdir()
    sshd = Sshd(tmp_path / "sshd")
    # As the user's own settings would have it: root's are not where HOME is.
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {sshd.config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    job = make(mark, 2, attach_to="gpu0")
    try:
        hosts = job.state(cached_path=None).trainers
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
    finally:
        job.kill()
        shutdown_context().get()
        sshd.close()


@pytest.mark.parametrize("limit", [{}, {"time_limit": "00:20:00"}], ids=["endless", "limited"])
def test_a_job_that_gives_way_to_another_warns(
    slurm: SlurmCluster, mark: str, faults: Any, limit: dict[str, Any]
) -> None:
    job = make(mark, 3, partition="low", **limit)
    heard = queue.SimpleQueue[HostWarning]()
    try:
        hosts = job.state(cached_path=None).trainers
        hosts.initialized.get(timeout=60)
        with hosts.on_warning(heard.put):
            other = slurm.said(
                "sbatch", "--parsable", "-p", "urgent", "-N3", "--exclusive", "-o", "/dev/null",
                "--wrap", "sleep 60",
            )  # fmt: skip
            warning = heard.get(timeout=LONG_SECONDS)
        assert warning.why == "its Slurm job gives way to another"
        assert warning.host in ("n1", "n2", "n3")
        assert warning.seconds is not None
        assert 0 < warning.seconds <= 30  # the grace, not what is left of the time limit
        # Its hosts end at once, as nothing runs on them; those in use have their grace.
        wait_for(lambda: state_of(slurm, other) == "RUNNING", LONG_SECONDS, what="the other")
        assert not job.is_running()
        assert f"Slurm job {job.job_id} is " in job.why_ended()
    finally:
        job.kill()


def test_a_time_limit_warns_and_then_ends_the_job(
    slurm: SlurmCluster, mark: str, faults: Any
) -> None:
    job, heard = make(mark, time_limit="00:01:00"), queue.SimpleQueue[HostWarning]()
    try:
        hosts = job.state(cached_path=None).trainers
        with hosts.on_warning(heard.put):
            warning = heard.get(timeout=LONG_SECONDS)
        assert warning.why == "the time limit of its Slurm job"
        assert warning.seconds is not None
        assert 0 < warning.seconds <= 60
        # There is time: for a checkpoint, say.
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(2).get(timeout=60).values() == [2]
        wait_for(lambda: state_of(slurm, job.job_id) == "TIMEOUT", LONG_SECONDS, what="its end")
        assert not job.is_running()
        assert f"Slurm job {job.job_id} is TIMEOUT" in job.why_ended()
    finally:
        job.kill()


def test_a_node_that_crashes_is_replaced(mark: str, faults: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    slurm = SlurmCluster()  # of its own: a node of it stays away
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.chdir(tmp_path)
    job = make(mark, 2)
    cache = tmp_path / "state.json"
    try:
        state = job.state(str(cache))
        before, job_id = list(job.names_by_url().values()), job.job_id
        echo = state.trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(1).get(timeout=60).values() == [1, 1]
        with Deaths() as deaths:
            slurm.lose(before[0])
            assert deaths.wait(60), "the loss was not told"
        # Slurm sees the node's silence, and queues the job again, to begin two minutes later.
        wait_for(
            lambda: slurm.said("squeue", "-h", "-j", job_id, "-o", "%T|%r") == "PENDING|BeginTime",
            LONG_SECONDS, what="the job to be queued again",
        )  # fmt: skip
        slurm.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        wait_for(
            lambda: slurm.said("squeue", "-h", "-j", job_id, "-t", "R", "-o", "%N") not in
            ("", ",".join(before), f"n[{before[0][1:]}-{before[1][1:]}]"),
            LONG_SECONDS, what="the job to run elsewhere",
        )  # fmt: skip
        assert job.repair()
        after = list(job.names_by_url().values())
        assert before[0] not in after
        assert after[1] == before[1]
        assert job.replaced == {after[0]: before[0]}
        assert job.job_id == job_id
        assert job_load(cache).names_by_url() == job.names_by_url()
        hosts = job.state(str(cache)).trainers
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(4).get(timeout=60).values() == [4, 4]
        job.kill()
        assert state_of(slurm, job_id) == "CANCELLED"
    finally:
        job.kill()
        if is_bootstrapped():
            shutdown_context().get()
        slurm.close()
