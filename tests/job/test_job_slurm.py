"""What goes wrong with jobs of Slurm, in the scheduler's own words."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import SlurmJob, job_load
from monarch.job.kinds.slurm import in_places
from monarch.runtime.entry.slurm_task import BIND_TO
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.actors import Echo
from tests.job.kinds import FAKES


@pytest.fixture(autouse=True)
def fake_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}/slurm:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.chdir(tmp_path)
    yield
    if is_bootstrapped():
        shutdown_context().get()


def refusal(job: SlurmJob) -> str:
    with pytest.raises(JobError) as caught:
        job.state(cached_path=None)
    return str(caught.value)


def test_no_sbatch_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot run `sbatch`: No such file or directory" in refusal(SlurmJob({"a": 1}))


def test_a_partition_that_there_is_not() -> None:
    told = refusal(SlurmJob({"a": 1}, partition="nope"))
    assert "sbatch: error: invalid partition specified: nope" in told


@pytest.mark.parametrize("wanted", [{"gpus_per_node": 9}, {"meshes": {"a": 5}}])
def test_more_than_there_is(wanted: dict[str, object]) -> None:
    told = refusal(SlurmJob(**{"meshes": {"a": 1}, **wanted}))  # type: ignore[arg-type]
    assert "Requested node configuration is not available" in told


@pytest.mark.long
def test_a_python_that_is_not_there_is_told_of_at_once(tmp_path: Path) -> None:
    told = refusal(SlurmJob({"a": 1}, "/nowhere/python"))
    assert "Slurm job 1 is FAILED" in told
    assert "/nowhere/python" in told


@pytest.mark.long
def test_a_queue_that_takes_too_long_is_left() -> None:
    first = SlurmJob({"a": 4}, sys.executable, monarch_port=free_port())
    first.state(cached_path=None)
    try:
        second = SlurmJob({"a": 1}, sys.executable, job_start_timeout=0.2)
        assert "Slurm job 2 is PENDING (Resources) after" in refusal(second)
        assert Path("slurm/2/state").read_text() == "CANCELLED"
    finally:
        first.kill()
    assert Path("slurm/1/state").read_text() == "CANCELLED"


def test_the_secret_is_in_no_argument_and_not_in_the_script(tmp_path: Path) -> None:
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=free_port())
    job.state(str(tmp_path / "state.json")).a.initialized.get(timeout=60)
    try:
        secret = job._secret.hex()
        assert secret not in Path("slurm/1/script").read_text()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    assert secret.encode() not in (entry / "cmdline").read_bytes()
                except OSError:
                    continue  # It has ended.
        assert job_load(tmp_path / "state.json").is_running()
    finally:
        job.kill()


@pytest.mark.long
def test_a_script_of_the_job_finds_its_own_nodes(tmp_path: Path) -> None:
    port = free_port()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom monarch.job import SlurmJob\nfrom tests.actors import Echo\n"
        f"job = SlurmJob({{'a': 2}}, sys.executable, monarch_port={port})\n"
        "echo = job.state().a.spawn_procs().spawn('echo', Echo)\n"
        "print('answers', *echo.echo.call(7).get().values())\n"
    )
    project = Path(__file__).parents[2]
    job = SlurmJob({"a": 2}, sys.executable, monarch_port=port, env={"PYTHONPATH": str(project)})
    job.apply(str(script))
    while (seen := job._look()).is_live:
        assert seen.state in ("PENDING", "RUNNING")
    assert seen.state == "COMPLETED", job._last_words()
    assert "answers 7 7" in Path(f"{job._logs}.out").read_text()


def test_the_machine_that_reaches_the_nodes_is_no_address() -> None:
    with pytest.raises(ValueError, match="as ssh knows it"):
        SlurmJob({"a": 1}, attach_to="tcp://127.0.0.1:45678")


@pytest.mark.long
def test_hosts_listen_where_the_job_says() -> None:
    port = free_port()
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=port, bind_to="0.0.0.0")
    hosts = job.state(cached_path=None).a
    try:
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.environment.call_one(BIND_TO).get(timeout=60) is None
        # The node's own address, at which it listens otherwise, is another one.
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    finally:
        job.kill()


@pytest.mark.parametrize("wrong", ["0.0.0.0:22222", "tcp://0.0.0.0", "worker"])
def test_where_hosts_listen_is_an_ip_address(wrong: str) -> None:
    with pytest.raises(ValueError, match="no IP address"):
        SlurmJob({"a": 1}, bind_to=wrong)


def test_a_job_may_be_given_a_command_as_monarch_s_are(tmp_path: Path) -> None:
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=free_port())
    marker = tmp_path / "a name"
    code = "import os, sys; print(os.environ['MONARCH_BATCH_JOB'], sys.argv[1:]); sys.exit(7)"
    job.apply(shlex.join([sys.executable, "-c", code, "--config", str(marker)]))
    while (seen := job._look()).is_live:
        assert seen.state in ("PENDING", "RUNNING")
    assert seen.state == "FAILED", job._last_words()
    assert f"1 ['--config', '{marker}']" in Path(f"{job._logs}.out").read_text()


@pytest.mark.parametrize(
    ("before", "now", "places"),
    [
        ([], ["n1", "n2"], ["n1", "n2"]),
        (["n1", "n2"], ["n2", "n3"], ["n3", "n2"]),
        (["n1", "n2", "n3"], ["n1", "n3", "n4"], ["n1", "n4", "n3"]),
        (["n2", "n3"], ["n1", "n4"], ["n1", "n4"]),
        (["n3", "n2"], ["n2", "n3"], ["n3", "n2"]),
    ],
)
def test_a_new_node_has_the_place_of_the_lost_one(
    before: list[str], now: list[str], places: list[str]
) -> None:
    assert in_places(before, now) == places


@pytest.mark.long
def test_a_node_that_comes_for_another_is_known_as_its_replacement() -> None:
    job = SlurmJob({"a": 2}, sys.executable, monarch_port=free_port())
    job.state(cached_path=None).a.initialized.get(timeout=60)
    try:
        assert list(job.names_by_url().values()) == ["n1", "n2"]
        # As where it ran on n4, which is lost: Slurm has queued it again, and it runs on n1.
        job._hosts = [job._hosts[1], job._hosts[0]._replace(name="n4", url="tcp://127.0.0.24:9")]
        job._nodes = "n[2,4]"
        assert job.repair() == ["n1"]
        assert job.replaced == {"n1": "n4"}
        assert list(job.names_by_url().values()) == ["n2", "n1"]
    finally:
        job.kill()


@pytest.mark.long
def test_nobody_commits_the_logs_of_a_job_that_is_noted_nowhere() -> None:
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=free_port())
    job.apply()
    try:
        assert Path(".monarch/logs").is_dir()
        assert Path(".monarch/.gitignore").read_text() == "*\n"
    finally:
        job.kill()


@pytest.mark.long
def test_a_folder_for_logs_that_is_the_users_own_stays_as_it_is(tmp_path: Path) -> None:
    job = SlurmJob({"a": 1}, sys.executable, monarch_port=free_port(), log_dir="mine/logs")
    job.apply()
    try:
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["logs"]
    finally:
        job.kill()
