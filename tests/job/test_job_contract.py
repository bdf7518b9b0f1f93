"""What every kind of job does alike: it comes up, is found again, loses hosts, and ends."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import SupervisionError
from monarch.job import JobState, JobTrait, job_load
from monarch.job.places import has_state, record_of
from monarch.runs import Deaths
from tests.actors import Echo
from tests.cli.command_folder import CommandFolder
from tests.job.kinds import KINDS, KINDS_OF_PROGRAMS, Kind, agent_pids, processes_marked
from tests.support import Program, is_running, wait_for

Programs = Callable[..., Program]

# Of programs that make jobs: the kind is told by the environment that they inherit.
_PROGRAM = """
import sys
from monarch.job import job_load
from tests.actors import Echo
from tests.job.kinds import agent_pids, make
job = make({kind!r}, {{"trainers": {num}}}, {mark!r})
state = job.state({cache!r})
state.trainers.initialized.get(timeout=60)
print("pids", *sorted(agent_pids(job._running)), flush=True)
echo = state.trainers.spawn_procs().spawn("echo", Echo)
print("answers", *echo.echo.call(3).get(timeout=60).values(), flush=True)
{then}
"""


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Kind]:
    made = Kind(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def mark() -> Iterator[str]:
    """What the processes of a test are found by; when it is over, there are none."""
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / ".monarch/job_state.json"


@pytest.fixture
def jobs() -> Iterator[list[JobTrait]]:
    made: list[JobTrait] = []
    yield made
    for job in made:
        job.kill()


def _program(kind: Kind, mark: str, cache: Path, then: str = "", num: int = 2) -> str:
    return _PROGRAM.format(kind=kind.name, mark=mark, cache=str(cache), then=then, num=num)


@pytest.mark.long_but(1)
def test_hosts_come_up_and_answer(kind: Kind, mark: str, jobs: list[JobTrait], cache: Path) -> None:
    job = kind.make({"trainers": 2} | ({} if kind.has_one_mesh else {"evaluators": 1}), mark)
    jobs.append(job)
    state = job.state(str(cache))
    assert len(state.trainers) == 2
    echo = state.trainers.spawn_procs({"procs": 2}).spawn("echo", Echo)
    assert echo.echo.call(3).get(timeout=60).values() == [3, 3, 3, 3]
    if not kind.has_one_mesh:
        one = state.evaluators.spawn_procs().spawn("echo", Echo)
        assert one.echo.call(4).get(timeout=60).values() == [4]
    assert job.is_running()
    num = 2 if kind.has_one_mesh else 3
    assert job.num_running() == num
    assert len(set(job.names_by_url().values())) == num


def test_the_state_is_private(kind: Kind, mark: str, jobs: list[JobTrait], cache: Path) -> None:
    job = kind.make({"trainers": 1}, mark)
    jobs.append(job)
    job.state(str(cache))
    assert record_of(cache).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", KINDS_OF_PROGRAMS, indirect=True)
def test_a_second_program_finds_it(kind: Kind, mark: str, program: Programs, cache: Path) -> None:
    first = program(_program(kind, mark, cache))
    pids = first.line("pids")
    assert first.line("answers") == "3 3"
    assert first.wait() == 0
    second = program(_program(kind, mark, cache, "job.kill()"))
    assert second.line("pids") == pids
    assert second.line("answers") == "3 3"
    assert second.wait() == 0
    assert not processes_marked(mark)
    assert not has_state(cache)


@pytest.mark.long
def test_a_lost_host_is_told_of_and_brought_back(
    kind: Kind, mark: str, jobs: list[JobTrait], cache: Path
) -> None:
    job = kind.make({"trainers": 2}, mark)
    jobs.append(job)
    state = job.state(str(cache))
    state.trainers.initialized.get(timeout=60)
    dead, _ = pids = agent_pids(job)
    if kind.replaces:
        _check_replacement(job, state, cache, dead)
        return
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not job.is_running(), what="the loss to be noticed")
    assert job.num_running() == 1
    lost = job.names_by_url()[job.urls()[0]]
    assert lost in job.why_ended()
    again = kind.make({"trainers": 2}, mark)
    jobs.append(again)
    hosts = again.state(str(cache)).trainers
    assert not set(agent_pids(again)) & set(pids)
    assert hosts.spawn_procs().spawn("echo", Echo).echo.call(5).get(timeout=60).values() == [5, 5]


def _check_replacement(job: JobTrait, state: JobState, cache: Path, dead: int) -> None:
    """Its scheduler brings the host again, by its name, and the job finds it."""
    before = job.names_by_url()
    echo = state.trainers.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call(5).get(timeout=60).values() == [5, 5]
    [other] = {*agent_pids(job)} - {dead}
    with Deaths() as deaths:
        os.kill(dead, signal.SIGKILL)
        assert deaths.wait(60), "the loss of a host was not told"
        with pytest.raises(SupervisionError):
            echo.echo.call(6).get(timeout=60)
    job.repair()
    hosts = job.state(str(cache)).trainers
    assert other in agent_pids(job)
    assert dead not in agent_pids(job)
    assert list(job.names_by_url().values()) == list(before.values())
    assert job_load(cache).names_by_url() == job.names_by_url()
    assert hosts.spawn_procs().spawn("echo", Echo).echo.call(7).get(timeout=60).values() == [7, 7]


@pytest.mark.long
def test_kill_leaves_nothing_and_it_can_be_applied_again(
    kind: Kind, mark: str, jobs: list[JobTrait], cache: Path
) -> None:
    job = kind.make({"trainers": 2}, mark)
    jobs.append(job)
    state = job.state(str(cache))
    echo = state.trainers.spawn_procs().spawn("echo", Echo)
    procs = [] if kind.is_inside_pods else echo.pid.call().get(timeout=60).values()
    pids, job_id = agent_pids(job), getattr(job, "job_id", "")
    job.kill()
    if kind.slurm is not None:
        assert kind.slurm.said("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T") == "CANCELLED"
    assert not [pid for pid in [*pids, *procs] if is_running(pid)]
    assert not processes_marked(mark)
    assert not has_state(cache)
    job.kill()
    again = job.state(str(cache)).trainers.spawn_procs().spawn("echo", Echo)
    assert again.echo.call(6).get(timeout=60).values() == [6, 6]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS_OF_PROGRAMS, indirect=True)
def test_two_users_at_once_do_not_meet(
    kind: Kind, mark: str, program: Programs, tmp_path: Path
) -> None:
    first = program(_program(kind, mark, tmp_path / "one/state.json", num=1))
    second = program(_program(kind, mark, tmp_path / "two/state.json", num=1))
    pids = [one.line("pids", 60.0) for one in (first, second)]
    assert pids[0] != pids[1]
    assert [one.wait() for one in (first, second)] == [0, 0]
    job_load(tmp_path / "one/state.json").kill()
    assert not is_running(int(pids[0]))
    assert is_running(int(pids[1]))
    last = program(_program(kind, mark, tmp_path / "two/state.json", "job.kill()", num=1))
    assert last.line("pids") == pids[1]
    assert last.line("answers") == "3"
    assert last.wait() == 0


@pytest.mark.long
def test_ctrl_c_while_it_comes_up_leaves_nothing(
    kind: Kind, mark: str, program: Programs, cache: Path
) -> None:
    running = program(_program(kind, mark, cache))
    wait_for(lambda: processes_marked(mark), what="a host to start")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) != 0
    if cache.exists():  # It was up already.
        job_load(cache).kill()
    if kind.name.startswith("ssh"):
        # A login that had not come through was cut off: the far end notices, and ends its host.
        wait_for(lambda: not processes_marked(mark), what="the far end to end its hosts")
    assert not processes_marked(mark)


@pytest.mark.parametrize("kind", KINDS_OF_PROGRAMS, indirect=True)
def test_the_command_line_drives_it(kind: Kind, mark: str, tmp_path: Path) -> None:
    path = tmp_path / "project"
    path.mkdir()
    folder = CommandFolder(path)
    folder.write("monarch.toml", kind.toml(mark))
    folder.write("model.py", "WIDTH = 1\n")
    try:
        assert "2 hosts, free" in folder.monarch("apply")
        assert "already up" in folder.monarch("apply")
        folder.monarch("sync")
        pids = agent_pids(job := job_load(path / ".monarch/job_state.json"))
        os.kill(pids[0], signal.SIGKILL)
        if kind.moves:
            wait_for(lambda: pids[0] not in agent_pids(job), 60.0, "its end")
            assert "brought up again" in folder.monarch("apply")
        elif kind.replaces:
            wait_for(lambda: pids[0] not in agent_pids(job) and job.is_whole(), 60.0, "its return")
            assert "already up" in folder.monarch("apply")
            assert pids[1] in agent_pids(job)
        else:
            wait_for(lambda: job.num_running() == 1, what="the loss to be noticed")
            assert "nobody listens there" in folder.monarch("status")
        if kind.can_repair:
            assert "brought up again" in folder.monarch("apply")
            assert agent_pids(job_load(path / ".monarch/job_state.json"))[1] == pids[1]
    finally:
        assert "ended" in folder.monarch("kill")
    assert not processes_marked(mark)
    assert "nothing to end" in folder.monarch("kill")
