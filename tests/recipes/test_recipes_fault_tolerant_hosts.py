"""What ends more than a group: the client, and a host with all that is on it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.job import ImageSpec, KubeConfig, KubernetesJob, ProcessJob
from monarch.runs import Record
from monarch.runs.recover.allocation import RunAllocation
from monarch_recipes.fault_tolerant import FaultTolerantConfig, run
from monarch_recipes.replicas.groups import GroupsError
from tests.job.fakes.kube_server import KubeServer
from tests.support import Program, is_running, wait_for

pytestmark = pytest.mark.timeout(400)  # Libraries that are imported take long under load.

SCRIPT = """
import sys
from pathlib import Path

from monarch.actor import this_host
from monarch.runs import LineDisplay, Record
from monarch_recipes.fault_tolerant import FaultTolerantConfig, run

folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
config = FaultTolerantConfig(hidden_size=16, num_steps=num_steps, checkpoint_every=10)
record = Record(folder, LineDisplay(sys.stdout), procs_per_host=2)
outcome = run(config, this_host(), record)
print("ENDED", outcome.step, len(outcome.fingerprints), len(set(outcome.fingerprints.values())))
"""


def events_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] in kinds]


@pytest.mark.slow
def test_a_killed_client_leaves_nobody_and_the_same_command_goes_on(
    tmp_path: Path, program: Callable[..., Program]
) -> None:
    folder = tmp_path / "run"
    arguments = f"import sys; sys.argv[1:] = [{str(folder)!r}, '100000']\n"
    first = program(arguments + SCRIPT)
    first.line("saved ", timeout=180)
    os.kill(first.pid, signal.SIGKILL)
    started = events_of(folder, "started", "lighthouse")
    pids = [pid for event in started for pid in event.get("pids", [event.get("pid")])]
    assert len(pids) == 3
    wait_for(lambda: not any(map(is_running, pids)), what="its procs end")
    saved = events_of(folder, "saved")[-1]["step"]

    again = program(arguments.replace("100000", str(saved + 300)) + SCRIPT)
    assert again.line("ENDED", timeout=180) == f"{saved + 300} 2 1"
    assert again.wait() == 0
    resumed = [event["step"] for event in events_of(folder, "started")[2:]]
    assert resumed == [resumed[0]] * 2
    assert resumed[0] >= saved


class Quiet:
    """Shows nothing, and does something at a step."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def message(self, text: str) -> None:
        pass

    def alarm(self, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Any) -> None:
        self.act(step)


@pytest.mark.slow
def test_a_pod_that_comes_again_elsewhere_costs_only_its_group(tmp_path: Path) -> None:
    server = KubeServer()
    job = KubernetesJob(
        "default", 60.0, KubeConfig.from_config(server.kubeconfig),
        python_exe=sys.executable, grace_seconds=1,
    )  # fmt: skip
    job.add_mesh("trainers", 2, image_spec=ImageSpec("python"))
    path = tmp_path / "state.json"
    try:
        hosts = job.state(str(path)).trainers
        lost = list(job.names_by_url().values())[1]
        left = [10]

        def act(step: int) -> None:
            if step in left:
                left.remove(step)
                server.delete_pod(lost, 0.0)
            if events_of(record.folder, "healed"):
                record.stop()

        record = Record(tmp_path / "run", Quiet(act), procs_per_host=1)
        record.allocation = RunAllocation(
            job, "trainers", path, tell=record.message,
            move=lambda other, num_hosts: other._state().trainers,
        )  # fmt: skip
        config = FaultTolerantConfig(hidden_size=16, num_steps=100_000, checkpoint_every=0)
        outcome = run(config, hosts, record)
        assert set(outcome.fingerprints) == {0, 1}
        assert [event["group"] for event in events_of(record.folder, "died")] == [1]
        assert [event["group"] for event in events_of(record.folder, "respawned")] == [1]
        assert not events_of(record.folder, "given_up")
    finally:
        job.kill()
        server.close()


@pytest.mark.huge
def test_a_lost_host_costs_its_group_and_the_last_host_the_run(tmp_path: Path) -> None:
    job = ProcessJob({"trainers": 2})
    try:
        hosts = job.state(cached_path=None).trainers
        pids = [host.pid for host in job.hosts]
        left = {20: pids[1], 60: pids[0]}

        def act(step: int) -> None:
            if step in left:
                os.kill(left.pop(step), signal.SIGKILL)

        record = Record(tmp_path / "run", Quiet(act), procs_per_host=1)
        config = FaultTolerantConfig(
            hidden_size=16, num_steps=100_000, checkpoint_every=10, max_restarts=1
        )
        with pytest.raises(GroupsError, match=r"the same command goes on from .*step-.*\.pt"):
            run(config, hosts, record)
        assert not left
        given_up = events_of(record.folder, "given_up")
        assert given_up[0]["group"] == 1
    finally:
        job.kill()
