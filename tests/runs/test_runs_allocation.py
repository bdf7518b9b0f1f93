"""What a run does when something on its allocation was lost, by what the state file says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, this_host
from monarch.errors import HostBusy, JobError
from monarch.job import JobState, JobTrait, job_load
from monarch.runs.allocation import AllocationLost, RunAllocation


class FakeJob(JobTrait):
    """Hosts that nobody has started. ``running`` says how many of them are there."""

    def __init__(self, num_hosts: int = 2, *, can_repair: bool = True) -> None:
        super().__init__()
        self.meshes = {"trainers": num_hosts}
        self.running = num_hosts
        self.can_repair = can_repair

    def _create(self, client_script: str | None) -> None: ...

    def _state(self) -> JobState:
        return JobState({"trainers": this_host()})

    def _is_running(self) -> bool:
        return self.running == self.meshes["trainers"]

    def _kill(self) -> None: ...

    def can_run(self, spec: JobTrait) -> bool:
        return True

    def urls(self) -> list[str]:
        return [f"ipc:///tmp/nowhere/{index}" for index in range(self.meshes["trainers"])]

    def num_running(self) -> int:
        return self.running

    def why_ended(self) -> str:
        return "trainers1 (pid 7) was killed by SIGKILL; the last lines of it:\nso much for that"

    def repair(self) -> list[str]:
        if not self.can_repair:
            return super().repair()
        self.running = self.meshes["trainers"]
        assert self._state_path is not None
        self.dump(self._state_path)
        return ["trainers1"]


class Scene:
    """A run on a job whose file lies in a folder."""

    def __init__(self, path: Path, job: FakeJob) -> None:
        self.path = path / ".monarch/state.json"
        self.job = job
        job.state(str(self.path))
        self.told: list[str] = []
        self.moves: list[Any] = []
        self.slept: list[Any] = []
        self.hosts = this_host()
        self.allocation = RunAllocation(
            job, "trainers", self.path, move=self.move, tell=self.told.append, sleep=self.sleep
        )

    def move(self, job: JobTrait) -> HostMesh:
        self.moves.append(job.apply_id)
        return this_host().flatten("other")

    def sleep(self, seconds: float) -> None:
        """What happens while the run waits: the next of ``slept``."""
        self.slept.pop(0)()

    def note(self, **changes: Any) -> None:
        vars(self.job).update(changes)
        self.job.dump(self.path)

    def after_loss(self) -> HostMesh:
        return self.allocation.after_loss(self.hosts)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, FakeJob(1))


def test_where_all_hosts_are_there_it_goes_on_with_them(scene: Scene) -> None:
    assert scene.after_loss() is scene.hosts
    assert scene.told == []
    assert scene.allocation.why_gone() == ""


def test_a_host_that_has_ended_is_brought_up_again(scene: Scene) -> None:
    scene.note(running=0)
    assert scene.after_loss() is scene.hosts
    assert scene.told == ["trainers1 (pid 7) was killed by SIGKILL: brought up again"]


def test_a_host_that_nobody_can_bring_up_again_ends_the_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeJob(3, can_repair=False))
    scene.note(running=2)
    with pytest.raises(AllocationLost) as caught:
        scene.after_loss()
    first, second, *_ = str(caught.value).splitlines()
    assert first.startswith("hosts of the allocation have ended, and a ")
    assert first.endswith("FakeJob job cannot bring a single host up again; 2 of 3 hosts are left")
    assert second.startswith("trainers1 (pid 7) was killed by SIGKILL")


def test_a_job_that_is_being_ended_ends_the_run(scene: Scene) -> None:
    scene.note(ending={"how": "ended", "by": "monarch kill (pid 8, user ann)"})
    with pytest.raises(AllocationLost) as caught:
        scene.after_loss()
    assert str(caught.value) == "the allocation was ended by monarch kill (pid 8, user ann)"


def test_a_job_that_is_gone_ends_the_run(scene: Scene) -> None:
    scene.path.unlink()
    with pytest.raises(AllocationLost, match=r"^the allocation was ended$"):
        scene.after_loss()


def test_a_job_that_is_gone_by_the_time_of_the_look_has_left_word_how(scene: Scene) -> None:
    job_load(scene.path).kill()
    assert not scene.path.exists()
    with pytest.raises(AllocationLost, match=r"^the allocation was ended by .*\bpid \d+"):
        scene.after_loss()


def test_a_run_waits_for_the_allocation_in_its_place_and_moves(scene: Scene) -> None:
    scene.note(ending={"how": "replaced", "by": "monarch apply (pid 8, user ann)"})
    scene.slept = [lambda: None, lambda: scene.note(ending=None, apply_id="the next")]
    moved = scene.after_loss()
    assert scene.slept == []
    assert scene.moves == ["the next"]
    assert moved is not scene.hosts
    assert scene.told == ["the allocation was replaced by another: the run moves over to that"]
    # From there on that is its own.
    assert scene.allocation.after_loss(moved) is moved


def test_an_allocation_of_another_size_ends_the_run(scene: Scene) -> None:
    scene.note(apply_id="the next", meshes={"trainers": 4})
    with pytest.raises(AllocationLost, match=r"it has 4 hosts in 'trainers', and this run began"):
        scene.after_loss()
    assert scene.moves == []


def test_who_brought_the_next_one_up_may_still_look_at_it(scene: Scene) -> None:
    scene.note(apply_id="the next")
    move = scene.move
    is_busy = [True]

    def moving(job: JobTrait) -> HostMesh:
        if is_busy:
            raise HostBusy("ipc:///tmp/nowhere", "monarch apply")
        return move(job)

    scene.allocation._move = moving
    scene.slept = [is_busy.clear]
    assert scene.after_loss() is not scene.hosts


def test_one_that_cannot_be_used_ends_the_run(scene: Scene) -> None:
    scene.note(apply_id="the next")

    def moving(job: JobTrait) -> HostMesh:
        raise JobError("it burns")

    scene.allocation._move = moving
    with pytest.raises(AllocationLost, match="replaced by another: it burns"):
        scene.after_loss()
