"""What a run does when something on its allocation was lost, by what the state file says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, this_host
from monarch.actor.host import Host
from monarch.errors import HostBusy, JobError
from monarch.job import JobState, JobTrait, job_load
from monarch.job.places import has_state, record_of
from monarch.mesh import Shape, Slice
from monarch.runs.recover.allocation import AllocationLost, OnHostLoss, RunAllocation
from monarch.wire.address import ProcAddress


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

    def running_urls(self) -> list[str]:
        return self.urls()[: self.running]

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
    """A run on a job whose state is kept for a path in a folder."""

    def __init__(self, path: Path, job: FakeJob) -> None:
        self.path = path / ".monarch/state.json"
        self.job = job
        job.state(str(self.path))
        self.told: list[str] = []
        self.moves: list[Any] = []
        self.slept: list[Any] = []
        hosts = [Host(ProcAddress(url), url) for url in job.urls()]
        shape = Shape(["hosts"], Slice.new_row_major([len(hosts)]))
        self.hosts = HostMesh("trainers", shape, hosts)
        self.choice: OnHostLoss = "end"
        self.asked: list[str] = []
        self.unfit = ""
        self.is_stopping = False
        self.allocation = RunAllocation(
            job, "trainers", self.path, move=self.move, tell=self.told.append, sleep=self.sleep,
            choose=self.choose, why_unfit=lambda num_hosts: self.unfit,
            is_stopping=lambda: self.is_stopping,
        )  # fmt: skip

    def choose(self, lost: str) -> OnHostLoss:
        self.asked.append(lost)
        return self.choice

    def move(self, job: JobTrait, num_hosts: int) -> HostMesh:
        self.moves.append((job.apply_id, num_hosts))
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


@pytest.fixture
def short(tmp_path: Path) -> Scene:
    """Of three hosts one is lost for good."""
    scene = Scene(tmp_path, FakeJob(3, can_repair=False))
    scene.note(running=2)
    return scene


def urls_of(mesh: HostMesh) -> list[str]:
    return [host.url for host in mesh._hosts]


def test_a_run_may_go_on_with_fewer_hosts(short: Scene) -> None:
    short.choice = "fewer"
    left = short.after_loss()
    assert urls_of(left) == short.job.urls()[:2]
    assert "2 of 3 hosts are left: going on with 2 hosts" in short.told[0]
    assert "trainers1 (pid 7) was killed by SIGKILL" in short.told[0]
    # What is left is whole: a rank that dies is no question.
    assert short.allocation.after_loss(left) is left
    assert len(short.asked) == 1
    short.note(running=1)
    assert urls_of(short.allocation.after_loss(left)) == short.job.urls()[:1]
    assert len(short.asked) == 2
    short.note(running=0)
    with pytest.raises(AllocationLost, match="0 of 2 hosts are left"):
        short.allocation.after_loss(left)
    assert len(short.asked) == 2, "there is nothing to choose"


def test_a_host_that_the_run_has_nothing_of_is_not_missed(short: Scene) -> None:
    two = short.hosts._among(short.job.urls()[:2])
    assert short.allocation.after_loss(two) is two
    assert not short.asked
    assert not short.told


def test_what_does_not_fit_fewer_hosts_does_not_go_on_with_them(short: Scene) -> None:
    short.choice, short.unfit = "fewer", "global_batch_size does not fit"
    with pytest.raises(AllocationLost, match="cannot go on with 2 hosts: global_batch_size does"):
        short.after_loss()
    assert "cannot go on with 2 hosts" in short.asked[0]
    assert len(short.allocation.after_loss(short.hosts, any_number=True)) == 2


def test_where_it_ends_it_says_how_to_go_on_with_fewer(short: Scene) -> None:
    with pytest.raises(AllocationLost, match="`--hosts 2` goes on with what is left"):
        short.after_loss()


def test_a_run_may_wait_until_a_host_is_back(short: Scene) -> None:
    short.choice = "wait"
    short.slept = [lambda: None, lambda: short.note(running=3)]
    assert short.after_loss() is short.hosts
    assert short.slept == []
    assert short.told == ["waiting for the hosts to come back; Ctrl-C stops the run"]


def test_a_run_that_waits_tries_to_bring_the_host_up_again(short: Scene) -> None:
    short.choice = "wait"
    short.slept = [lambda: short.note(can_repair=True), lambda: None]
    assert short.after_loss() is short.hosts
    assert short.job.running == 3 or job_load(short.path).running == 3  # type: ignore[attr-defined]


def test_a_run_that_waits_can_be_stopped_and_moves_where_it_is_to(short: Scene) -> None:
    short.choice = "wait"
    short.slept = [lambda: setattr(short, "is_stopping", True)]
    with pytest.raises(KeyboardInterrupt):
        short.after_loss()
    short.is_stopping = False
    short.slept = [lambda: short.note(apply_id="the next", running=3)]
    assert short.after_loss() is not short.hosts
    assert short.moves == [("the next", 3)]


def test_a_run_that_takes_a_part_moves_to_any_that_has_as_many(short: Scene) -> None:
    short.choice = "fewer"
    left = short.after_loss()
    short.note(apply_id="the next", meshes={"trainers": 4})
    short.allocation.after_loss(left)
    assert short.moves == [("the next", 2)]


def test_a_job_that_is_being_ended_ends_the_run(scene: Scene) -> None:
    scene.note(ending={"how": "ended", "by": "monarch kill (pid 8, user ann)"})
    with pytest.raises(AllocationLost) as caught:
        scene.after_loss()
    assert str(caught.value) == "the allocation was ended by monarch kill (pid 8, user ann)"


def test_a_job_that_is_gone_ends_the_run(scene: Scene) -> None:
    record_of(scene.path).unlink()
    with pytest.raises(AllocationLost, match=r"^the allocation was ended$"):
        scene.after_loss()


def test_a_job_that_is_gone_by_the_time_of_the_look_has_left_word_how(scene: Scene) -> None:
    job_load(scene.path).kill()
    assert not has_state(scene.path)
    with pytest.raises(AllocationLost, match=r"^the allocation was ended by .*\bpid \d+"):
        scene.after_loss()


def test_a_run_waits_for_the_allocation_in_its_place_and_moves(scene: Scene) -> None:
    scene.note(ending={"how": "replaced", "by": "monarch apply (pid 8, user ann)"})
    scene.slept = [lambda: None, lambda: scene.note(ending=None, apply_id="the next")]
    moved = scene.after_loss()
    assert scene.slept == []
    assert scene.moves == [("the next", 1)]
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

    def moving(job: JobTrait, num_hosts: int) -> HostMesh:
        if is_busy:
            raise HostBusy("ipc:///tmp/nowhere", "monarch apply")
        return move(job, num_hosts)

    scene.allocation.move = moving
    scene.slept = [is_busy.clear]
    assert scene.after_loss() is not scene.hosts


def test_one_that_cannot_be_used_ends_the_run(scene: Scene) -> None:
    scene.note(apply_id="the next")

    def moving(job: JobTrait, num_hosts: int) -> HostMesh:
        raise JobError("it burns")

    scene.allocation.move = moving
    with pytest.raises(AllocationLost, match="replaced by another: it burns"):
        scene.after_loss()


def test_hosts_that_end_while_a_run_holds_are_brought_up_then(scene: Scene) -> None:
    scene.allocation.repair()
    assert not scene.told
    scene.note(running=0)
    scene.allocation.repair()
    assert scene.told == ["trainers1 (pid 7) was killed by SIGKILL: brought up again"]
    assert scene.after_loss() is scene.hosts
    assert len(scene.told) == 1


def test_what_cannot_be_brought_up_while_a_run_holds_is_told_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FakeJob(2, can_repair=False))
    scene.note(running=1)
    for _ in range(3):
        scene.allocation.repair()
    assert len(scene.told) == 1
    assert "cannot bring a single host up again" in scene.told[0]
