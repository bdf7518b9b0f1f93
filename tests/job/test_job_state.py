"""Which allocation a program gets: its own, one that is noted, or a new one."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.config import runtime_dir
from monarch.errors import JobError
from monarch.job import (
    JobState,
    JobTrait,
    LocalJob,
    ProcessJob,
    job_load,
    job_loads,
)
from monarch.job.places import has_state, make_record_of, record_of
from monarch.job.state_folder import sign
from tests.actors import Echo
from tests.support import Program, is_running, wait_for

Programs = Callable[..., Program]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / ".monarch/job_state.json"


@pytest.fixture
def jobs() -> Iterator[list[JobTrait]]:
    """Jobs to end after the test."""
    made: list[JobTrait] = []
    yield made
    for job in made:
        job.kill()


def _pids(job: JobTrait) -> list[int]:
    assert isinstance(job, ProcessJob)
    return [host.pid for host in job.hosts]


# ProcessJob, by hand


def test_a_job_is_found_again_by_the_same_object(jobs: list[JobTrait], cache: Path) -> None:
    job = ProcessJob({"trainers": 2, "evaluators": 1})
    jobs.append(job)
    assert not job.active
    state = job.state(str(cache))
    assert job.active
    assert len(state.trainers) == 2
    assert len(state.evaluators) == 1
    pids = _pids(job)
    assert list(job._host_to_pid) == ["trainers_0", "trainers_1", "evaluators_0"]
    assert [host.pid for host in job._host_to_pid.values()] == pids
    assert job.state(str(cache)).trainers == state.trainers
    assert _pids(job) == pids
    echo = state.trainers.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call(3).get(timeout=30).values() == [3, 3]


def test_state_names_what_there_is() -> None:
    state = JobState({"trainers": this_host(), "evaluators": this_host()})
    with pytest.raises(AttributeError) as caught:
        state.trainer
    assert str(caught.value) == (
        "'trainer' is not a valid host mesh name. Available names: trainers, evaluators"
    )
    assert repr(state) == "JobState(trainers, evaluators)"


@pytest.mark.parametrize("meshes", [{}, {"a": 0}, {"a": 1, "b": -1}])
def test_meshes_need_hosts(meshes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one host"):
        ProcessJob(meshes)


def test_a_noted_job_that_fits_is_used(jobs: list[JobTrait], cache: Path) -> None:
    first = ProcessJob({"trainers": 1}, env={"FLAVOUR": "plain"})
    jobs.append(first)
    first.state(str(cache))
    second = ProcessJob({"trainers": 1}, env={"FLAVOUR": "plain"})
    procs = second.state(str(cache)).trainers.spawn_procs()
    assert _pids(first) == _pids(second._running or second)
    echo = procs.spawn("echo", Echo)
    assert echo.environment.call("FLAVOUR").get(timeout=30).values() == ["plain"]


@pytest.mark.parametrize(
    "other",
    [
        ProcessJob({"trainers": 2}),
        ProcessJob({"evaluators": 1}),
        ProcessJob({"trainers": 1}, env={"FLAVOUR": "sweet"}),
        ProcessJob({"trainers": 1}, preload=["json"]),
    ],
    ids=["number", "name", "env", "preload"],
)
def test_a_noted_job_that_does_not_fit_is_killed(
    other: ProcessJob, jobs: list[JobTrait], cache: Path
) -> None:
    first = ProcessJob({"trainers": 1})
    jobs += [first, other]
    first.state(str(cache))
    [pid] = _pids(first)
    other.state(str(cache))
    assert not is_running(pid)
    assert job_load(cache).can_run(other)
    assert all(is_running(new) for new in _pids(other))


def test_a_noted_job_that_has_ended_is_made_anew(jobs: list[JobTrait], cache: Path) -> None:
    first = ProcessJob({"trainers": 1})
    jobs.append(first)
    first.state(str(cache))
    os.kill(_pids(first)[0], signal.SIGTERM)
    wait_for(lambda: not first.is_running(), what="the host to end")
    second = ProcessJob({"trainers": 1})
    jobs.append(second)
    second.state(str(cache))
    assert second.is_running()
    assert _pids(second) != _pids(first)


def test_what_is_left_of_a_noted_job_is_killed(jobs: list[JobTrait], cache: Path) -> None:
    first = ProcessJob({"trainers": 2})
    jobs.append(first)
    first.state(str(cache))
    dead, left = _pids(first)
    os.kill(dead, signal.SIGKILL)
    first._children[0].wait(20)
    directory = first._directory
    second = ProcessJob({"trainers": 2})
    jobs.append(second)
    second.state(str(cache))
    assert not is_running(left)
    assert not Path(directory).exists()
    assert all(is_running(pid) for pid in _pids(second))


def test_an_allocation_that_cannot_be_noted_is_ended(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = ProcessJob({"trainers": 1})
    with pytest.raises(FileExistsError):
        job.state(str(tmp_path / "file/state.json"))
    assert not job.active
    assert job.hosts == []


def test_no_file_is_kept_where_none_is_wanted(
    jobs: list[JobTrait], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 1})
    jobs.append(job)
    job.state(cached_path=None)
    assert list(tmp_path.iterdir()) == []


def test_kill_leaves_nothing(cache: Path) -> None:
    job = ProcessJob({"trainers": 2})
    job.state(str(cache)).trainers.spawn_procs({"gpus": 2}).initialized.get(timeout=30)
    pids, directory = _pids(job), Path(job._directory)
    assert directory.is_dir()
    job.kill()
    assert not any(is_running(pid) for pid in pids)
    assert not directory.exists()
    assert not has_state(cache)
    assert not job.active
    job.kill()


def test_kill_takes_the_sockets_of_a_host_agent_that_was_killed(
    cache: Path, faults: list[object]
) -> None:
    job = ProcessJob({"trainers": 1})
    state = job.state(cached_path=str(cache))
    state.trainers.spawn_procs({"gpus": 1}).spawn("echo", Echo).pid.call_one().get(timeout=60)
    (host,) = job.hosts
    left = [name for name in os.listdir(runtime_dir()) if f"-{host.pid}-" in name]
    assert left
    os.kill(host.pid, signal.SIGKILL)
    wait_for(lambda: not host.is_running, what="the host agent to end")
    job.kill()
    assert not set(left) & set(os.listdir(runtime_dir()))


def test_a_job_that_ends_leaves_the_state_file_of_the_one_in_its_place(cache: Path) -> None:
    first, second = LocalJob(), LocalJob()
    first.state(str(cache))
    second.apply()
    second.dump(cache)
    first.kill()
    assert job_load(cache).apply_id == second.apply_id
    job_load(cache).kill()
    assert not has_state(cache)


# The kept state


def test_the_state_is_private_json(jobs: list[JobTrait], cache: Path) -> None:
    job = ProcessJob({"trainers": 2}, env={"A": "b"}, preload=["json"])
    jobs.append(job)
    job.state(str(cache))
    assert stat.S_IMODE(record_of(cache).stat().st_mode) == 0o600
    data = json.loads(record_of(cache).read_bytes())
    assert data["kind"] == "process"
    assert data["apply_id"] == job.apply_id
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, ".gitignore"}
    assert (cache.parent / ".gitignore").read_text() == "*\n"  # it holds for one machine

    again = job_load(cache)
    assert isinstance(again, ProcessJob)
    assert again.hosts == job.hosts
    assert again.can_run(job)
    assert again.is_running()
    assert job_loads(job.dumps()).dumps() == job.dumps()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_state_that_others_can_touch_is_refused(
    mode: int, jobs: list[JobTrait], cache: Path
) -> None:
    job = ProcessJob({"trainers": 1})
    jobs.append(job)
    job.state(str(cache))
    record = record_of(cache)
    record.chmod(mode)
    for load in (lambda: job_load(cache), lambda: ProcessJob({"trainers": 1}).state(str(cache))):
        with pytest.raises(JobError, match=f"chmod 600 {record}"):
            load()
    # The job is not lost: it can still be found.
    record.chmod(0o600)
    assert job_load(cache).is_running()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"\x80\x04}", "not the state of a job"),
        (b"", "not the state of a job"),
        (b"[1]", "not the state of a job"),
        ({"version": 2}, "not the state of a job"),
        ({"version": 2, "kind": "process", "bases": 1}, "not the state of a job"),
        ({"version": 2, "kind": "process"}, "damaged"),
        ({"version": 2, "kind": "process", "meshes": 3, "env": {}, "preload": []}, "damaged"),
        ({"version": 2, "kind": "cloud"}, "unknown kind of job 'cloud'; known: "),
        ({"version": 3, "kind": "process"}, "version 3, this release reads 2"),
    ],
)
def test_what_is_no_state_is_refused(
    damage: bytes | dict[str, Any], message: str, cache: Path
) -> None:
    data = damage if isinstance(damage, bytes) else sign("job", damage)
    with pytest.raises(JobError, match=message):
        job_loads(data)
    make_record_of(cache).write_bytes(data)
    record_of(cache).chmod(0o600)
    with pytest.raises(JobError, match=message):
        job_load(cache)


def test_a_damaged_state_is_replaced(jobs: list[JobTrait], cache: Path) -> None:
    record = make_record_of(cache)
    record.touch(0o600)
    record.write_bytes(b'{"version": 1, "ki')
    job = ProcessJob({"trainers": 1})
    jobs.append(job)
    job.state(str(cache))
    assert job_load(cache).is_running()


def test_there_is_no_job_without_a_state(cache: Path) -> None:
    with pytest.raises(FileNotFoundError):
        job_load(cache)


# Across programs

MAKE = """
import sys
from monarch.job import ProcessJob
from tests.actors import Echo
job = ProcessJob({"trainers": 2})
hosts = job.state(sys.argv[1] if len(sys.argv) > 1 else CACHE).trainers
echo = hosts.spawn_procs().spawn("echo", Echo)
print("procs", *echo.pid.call().get(timeout=30).values(), flush=True)
print("hosts", *[host.pid for host in (job._running or job).hosts], flush=True)
"""


def test_hosts_outlive_the_program_that_made_them(
    program: Programs, jobs: list[JobTrait], cache: Path
) -> None:
    script = f"CACHE = {str(cache)!r}\n{MAKE}"
    first = program(script)
    procs, hosts = (first.line(word).split() for word in ("procs", "hosts"))
    assert first.wait() == 0, first.story()
    wait_for(lambda: not any(is_running(int(pid)) for pid in procs), what="its procs end")
    assert all(is_running(int(pid)) for pid in hosts)
    second = program(script)
    second.line("procs")
    assert second.line("hosts").split() == hosts
    assert second.wait() == 0, second.story()
    job = job_load(cache)
    jobs.append(job)
    assert list(map(str, _pids(job))) == hosts


def test_an_interrupt_while_hosts_come_up_leaves_none(program: Programs, cache: Path) -> None:
    started = program(
        f"""
        import os, signal
        from monarch.job import ProcessJob, process
        start = ProcessJob._start
        def start_and_interrupt(self, mesh, name):
            host = start(self, mesh, name)
            print("host", host.pid, self._directory, flush=True)
            if name == "trainers0":
                os.kill(os.getpid(), signal.SIGINT)
            return host
        ProcessJob._start = start_and_interrupt
        ProcessJob({{"trainers": 2}}).state({str(cache)!r})
        """
    )
    pid, directory = started.line("host").split()
    other, _ = started.line("host").split()
    assert started.wait() in (-signal.SIGINT, 130), started.story()
    assert "KeyboardInterrupt" in started.story()
    for host in (pid, other):
        wait_for(lambda host=host: not is_running(int(host)), 5.0, "the host to end")
    assert not Path(directory).exists()
    assert not has_state(cache)


# LocalJob


def test_a_local_job_is_this_host(tmp_path: Path) -> None:
    job = LocalJob(("trainers", "evaluators"))
    state = job.state(str(tmp_path / "state.json"))
    assert state.trainers == this_host() == state.evaluators
    assert job.is_running()
    assert job.urls() == []
    again = job_load(tmp_path / "state.json")
    assert isinstance(again, LocalJob)
    assert again.host_names == ("trainers", "evaluators")
    assert not again.can_run(job), "it ended with its program"
    job.kill()
    assert not (tmp_path / "state.json").exists()


def test_a_local_job_runs_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(
        "import os; print('batch', os.environ['MONARCH_BATCH_JOB'], flush=True); input()"
    )
    job = LocalJob()
    job.apply("script.py")
    assert job.process is not None
    assert job.process.wait(20) == 1, "its stdin is empty"
    [log] = tmp_path.glob(".monarch/logs/*")
    assert (log / "stdout.log").read_text() == "batch 1\n"
    assert "EOFError" in (log / "stderr.log").read_text()
    job.kill()


def test_a_process_job_runs_no_script() -> None:
    with pytest.raises(JobError, match="run the script itself"):
        ProcessJob({"trainers": 1}).apply("script.py")


# A program's own kind of job


class Reserved(JobTrait):
    """Says only what upstream asks for."""

    def __init__(self, names: list[str], tags: object = None) -> None:
        super().__init__()
        self.names = names
        self.tags = tags
        self.script: str | None = None
        self.num_created = 0

    def _create(self, client_script: str | None) -> None:
        self.script = client_script
        self.num_created += 1

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self.names})

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, Reserved) and spec.names == self.names

    def _kill(self) -> None:
        self.num_created = -1


def test_a_kind_of_job_of_a_program_is_found_again(cache: Path) -> None:
    job = Reserved(["a", "b"])
    assert repr(job.state(str(cache))) == "JobState(a, b)"
    assert (job.script, job.num_created) == (None, 1)
    noted = job_load(cache)
    assert isinstance(noted, Reserved)
    assert (noted.names, noted.num_created, noted.apply_id) == (["a", "b"], 1, job.apply_id)
    again = Reserved(["a", "b"])
    assert repr(again.state(str(cache))) == "JobState(a, b)"
    assert again.num_created == 0, "the noted one is used"
    other = Reserved(["c"])
    assert repr(other.state(str(cache))) == "JobState(c)"
    assert other.num_created == 1
    job.apply("train.py")
    assert job.script is None, "it runs already"


class Guarded(Reserved):
    """Differs from its base in nothing that a state file holds."""

    def _kill(self) -> None:
        raise RuntimeError("the credentials have expired")


class Labelled(ProcessJob):
    def __init__(self, label: str) -> None:
        super().__init__({"trainers": 1})
        self.label = label


def test_a_job_of_a_derived_kind_is_found_as_what_it_is(
    jobs: list[JobTrait], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(job_loads(Guarded(["a"]).dumps())) is Guarded
    job = Labelled("mine")
    jobs.append(job)
    job.state(str(cache))
    noted = job_load(cache)
    assert type(noted) is Labelled
    assert noted.hosts == job.hosts
    # To a program that does not know it, like `monarch status`, it is what it derives from.
    monkeypatch.delitem(JobTrait._kinds, Labelled.kind)
    assert type(job_load(cache)) is ProcessJob
    assert noted.dumps() == job.dumps()


def test_a_noted_job_that_cannot_be_ended_is_replaced(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Guarded(["a"]).state(str(cache))
    job = Reserved(["b"])
    assert repr(job.state(str(cache))) == "JobState(b)"
    noted = job_load(cache)
    assert isinstance(noted, Reserved)
    assert noted.names == ["b"]
    (record,) = caplog.records
    assert f"could not end the {Guarded.kind} job of an earlier program" in record.message
    assert "credentials" in str(record.exc_info and record.exc_info[1])


def test_a_job_whose_attributes_are_no_data_says_what_to_do(cache: Path) -> None:
    job = Reserved(["a"], tags={1, 2})
    with pytest.raises(JobError, match=r"'tags', a set: give the class `_to_data`"):
        job.state(str(cache))
    assert job.num_created == -1
    assert not has_state(cache)
    assert repr(job.state(cached_path=None)) == "JobState(a)"


# Services that are not there


def test_a_job_that_wants_services_runs_without_them() -> None:
    job = LocalJob()
    with pytest.warns(UserWarning, match="no admin service"):
        assert job.enable_admin(admin_addr="[::]:1729") is job
    state = job.state(cached_path=None)
    assert state.dashboard_url is state.telemetry_url is state.admin_url is None
    assert state.query_engine is state.query_engine_client is None
    assert state.hosts == this_host()
    with pytest.raises(TypeError, match="retention"):
        job.enable_telemetry(retention=3)
