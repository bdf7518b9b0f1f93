"""A host that is lost for good: the run goes on with those that are left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import HostMesh
from monarch.errors import JobError
from monarch.job import ProcessJob
from monarch.runs import Record
from monarch.runs.recover.allocation import AllocationLost, RunAllocation
from monarch_recipes import ddp, rl
from monarch_recipes.checkpoint import checkpoint_path, checkpoint_paths, load_checkpoint
from monarch_recipes.rl import RLConfig
from tests.recipes.held_run import digest_of
from tests.support import is_running, wait_for

pytestmark = pytest.mark.timeout(300)

SMALL = {"num_channels": 4, "num_epochs": 1, "checkpoint_every": 4, "device": "cpu"}
NUM_STEPS = 11


class FragileJob(ProcessJob):
    """One whose hosts do not come back."""

    def repair(self) -> list[str]:
        raise JobError("a rack has burnt down")


class Acting:
    """A display that does something after a step."""

    def __init__(self, at: Mapping[int, Callable[[], object]]) -> None:
        self.at = dict(at)
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    alarm = message

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        self.at.pop(step, lambda: None)()


class Scene:
    """Two hosts, of which one is lost after a step."""

    def __init__(self, root: Path, lost_after: int, lost: int = 1) -> None:
        self.lost = lost
        self.job = FragileJob({"trainers": 2})
        self.path = root / "state.json"
        self.hosts: HostMesh = self.job.state(str(self.path)).trainers
        self.display = Acting({lost_after: self.lose_a_host})
        self.record = Record(root / "run", self.display, procs_per_host=1)

    def lose_a_host(self) -> None:
        """And its ranks, before the run asks for one more step."""
        host = psutil.Process(self.job.hosts[self.lost].pid)
        lost = [host, *host.children(recursive=True)]
        os.kill(host.pid, signal.SIGKILL)
        wait_for(lambda: not any(is_running(one.pid) for one in lost), what="a host ends")

    def policy(self, choice: Any) -> None:
        def move(job: Any, num_hosts: int) -> HostMesh:
            raise AssertionError("there is no other allocation")

        self.record.allocation = RunAllocation(
            self.job, "trainers", self.path, move=move, tell=self.record.message,
            choose=lambda lost: choice,
        )  # fmt: skip
        # Read back from the file, it would be one that can bring hosts up again.
        self.record.allocation._read = lambda: self.job  # type: ignore[method-assign]

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.record.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, 6)
    yield made
    made.job.kill()


def state_after(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_checkpoint(path).state
    del state["generation"]
    return state


@pytest.mark.long
def test_ddp_goes_on_with_fewer_from_its_last_checkpoint(scene: Scene, tmp_path: Path) -> None:
    scene.policy("fewer")
    outcome = ddp.run(ddp.DDPConfig(**SMALL), scene.hosts, scene.record)
    assert outcome.step == NUM_STEPS
    told = "\n".join(scene.display.said)
    assert "1 of 2 hosts is left: going on with 1 host" in told, told
    (again,) = scene.events("respawned")
    # Its display may do something to the run, so that no step is asked for ahead.
    assert "from step 5; steps 5 to 6 are made again" in again["text"], again

    # It learns what a run learns that goes on from there with one host alone.
    alone = Record(tmp_path / "alone", Acting({}), procs_per_host=1)
    here = scene.hosts._among(scene.job.running_urls())
    start = str(checkpoint_path(scene.record.checkpoint_dir, 4))
    ddp.run(ddp.DDPConfig(**SMALL, resume=start), here, alone)
    ours, theirs = (
        state_after(checkpoint_paths(record.checkpoint_dir)[-1]) for record in (scene.record, alone)
    )
    assert ours["step"] == theirs["step"] == NUM_STEPS
    assert digest_of(ours) == digest_of(theirs)


@pytest.mark.long
def test_without_anybody_to_say_so_it_ends_and_says_how_to_go_on(scene: Scene) -> None:
    scene.policy("end")
    with pytest.raises(AllocationLost, match=r"--hosts 1. goes on with what is left"):
        ddp.run(ddp.DDPConfig(**SMALL), scene.hosts, scene.record)


@pytest.mark.long
def test_groups_that_are_left_go_on_without_the_one_whose_host_is_lost(tmp_path: Path) -> None:
    pytest.importorskip(
        "torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'"
    )
    from monarch_recipes import fault_tolerant

    scene = Scene(tmp_path, 20)
    try:
        scene.policy("fewer")
        config = fault_tolerant.FaultTolerantConfig(
            hidden_size=16, num_steps=60, checkpoint_every=0, device="cpu"
        )
        outcome = fault_tolerant.run(config, scene.hosts, scene.record)
        assert outcome.step == 60
        assert len(outcome.fingerprints) == 1
        (given_up,) = scene.events("given_up")
        assert given_up["group"] == 1
        assert "its host is lost" in given_up["text"]
        assert not scene.events("respawned"), "the other group has gone on"
    finally:
        scene.job.kill()


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1])
def test_what_samples_and_judges_on_a_lost_host_moves_to_those_that_are_left(
    tmp_path: Path, lost: int
) -> None:
    config = RLConfig(
        task="tests.recipes.rl_task", width=16, num_blocks=1, num_heads=2, num_supervised_steps=4,
        num_steps=8, num_held_out=8, problems_per_step=8, samples_per_problem=4, num_slots=16,
        temperature=2.0, evaluate_every=0, checkpoint_every=2, device="cpu",
        num_trainers=2, num_generators=2, num_rewards=2,
    )  # fmt: skip
    scene = Scene(tmp_path, 7, lost)
    try:
        scene.policy("fewer")
        outcome = rl.run(config, scene.hosts, scene.record)
    finally:
        scene.job.kill()
    assert outcome.step == 12
    assert outcome.held_out_solved is not None
    told = "\n".join(scene.display.said)
    assert "1 of 2 hosts is left: going on with 1 host" in told, told
    members = {event["member"] for event in scene.events("respawned") if "member" in event}
    assert {f"generator {lost}", f"reward {lost}"} <= members
    assert ("buffer 0" in members) == (lost == 0)
