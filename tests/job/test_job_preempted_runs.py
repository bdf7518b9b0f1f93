"""A scheduler announces the end of hosts that a run is on: it saves, and goes on from there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.job import KubeConfig, KubernetesJob, SlurmJob
from monarch.runs import Record
from monarch.runs.recover.allocation import AllocationLost, RunAllocation
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.job.kube_cluster import KubeCluster, pod_template
from tests.job.slurm_cluster import SlurmCluster
from tests.support import wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]

PROJECT = Path(__file__).parents[2]
NUM_STEPS = 11
WARNED_AFTER, GONE_AFTER = 3, 5
LONG_SECONDS = 200.0  # Slurm looks at time limits every half a minute or so.


class Preempted:
    """A display that has hosts announced to end after a step, and waits for their end after
    another."""

    def __init__(self, announce: Callable[[], object], is_over: Callable[[], bool]) -> None:
        self.announce, self.is_over = announce, is_over
        self.said: list[str] = []
        self.left = [WARNED_AFTER, GONE_AFTER]
        self.record: Record

    def message(self, text: str) -> None:
        self.said.append(text)

    alarm = message

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if step not in self.left:
            return
        self.left.remove(step)
        if step == WARNED_AFTER:
            self.announce()
            wait_for(lambda: self.record.is_save_wanted, LONG_SECONDS, what="the warning")
        else:
            wait_for(self.is_over, LONG_SECONDS, what="the end of the host")


@pytest.fixture(autouse=True)
def leave() -> Iterator[None]:
    yield
    if is_bootstrapped():
        shutdown_context().get()


def events_of(record: Record) -> list[dict[str, Any]]:
    return list(map(json.loads, (record.folder / "events.jsonl").read_text().splitlines()))


def small() -> Any:
    from monarch_recipes import ddp  # It imports torch, which takes seconds.

    return ddp, ddp.DDPConfig(num_channels=4, num_epochs=1, checkpoint_every=0, device="cpu")


def test_a_pod_that_is_deleted_costs_the_steps_since_its_warning(
    tmp_path: Path, faults: Any
) -> None:
    ddp, config = small()
    cluster = KubeCluster.shared()
    template = pod_template()
    # All hosts see the checkpoints.
    [container] = template["spec"]["containers"]
    container["volumeMounts"].append({"name": "run", "mountPath": str(tmp_path)})
    container["env"].append({"name": "PYTHONPATH", "value": f"{PROJECT}:{PROJECT}/recipes"})
    template["spec"]["volumes"].append({"name": "run", "hostPath": {"path": str(tmp_path)}})
    kubeconfig = KubeConfig.from_path(str(cluster.kubeconfig))
    job = KubernetesJob(
        "default", 120.0, kubeconfig, python_exe=sys.executable, grace_seconds=20
    )  # fmt: skip
    job.add_mesh("trainers", 2, pod_template=template)
    path = tmp_path / "state.json"
    try:
        hosts = job.state(str(path)).trainers
        pod = job.hosts[1].name
        kubectl = [*kubeconfig.kubectl(), "-n", "default"]

        def uid() -> str:
            command = [*kubectl, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}"]
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout

        before = uid()
        display = Preempted(
            lambda: subprocess.run([*kubectl, "delete", "pod", pod, "--wait=false"], check=True),
            lambda: uid() not in ("", before),
        )
        record = display.record = Record(tmp_path / "run", display, procs_per_host=1)
        record.allocation = RunAllocation(
            job, "trainers", path, tell=record.message,
            move=lambda other, num_hosts: other._state().trainers,
        )  # fmt: skip
        outcome = ddp.run(config, hosts, record)
        assert (outcome.step, outcome.num_restarts) == (NUM_STEPS, 1)
        events = events_of(record)
        told = {event["kind"]: event for event in events}
        assert f"{pod} ends in 20 s: its pod is being deleted; saving" in told["warned"]["text"]
        saved = [event["step"] for event in events if event["kind"] == "saved"]
        assert saved == [WARNED_AFTER, NUM_STEPS]
        assert told["resumed"]["step"] == WARNED_AFTER
        assert "brought up again" in "\n".join(display.said)
    finally:
        job.kill()


def test_a_time_limit_of_slurm_costs_the_steps_since_its_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: Any
) -> None:
    ddp, config = small()
    slurm = SlurmCluster.shared()
    slurm.clear()
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.chdir(tmp_path)

    def attempt(*, is_to_end: bool) -> tuple[Record, Any]:
        """With a job of its own, as the same command would have it, given the next day."""
        began = time.monotonic()
        job = SlurmJob(
            {"trainers": 2}, sys.executable, monarch_port=free_port(), time_limit="00:30:00"
        )
        path = tmp_path / "state.json"

        def shorten() -> None:
            """To a minute from now, or two: the warning of two minutes is due."""
            minutes = int((time.monotonic() - began) / 60) + 2
            slurm.run("scontrol", "update", f"JobId={job.job_id}", f"TimeLimit={minutes}")

        try:
            hosts = job.state(str(path)).trainers
            display = Preempted(shorten, lambda: not job.is_running())
            if not is_to_end:
                display.left.clear()
            record = display.record = Record(tmp_path / "run", display, procs_per_host=1)
            record.allocation = RunAllocation(
                job, "trainers", path, tell=record.message,
                move=lambda other, num_hosts: other._state().trainers,
            )  # fmt: skip
            if not is_to_end:
                return record, ddp.run(config, hosts, record)
            with pytest.raises(AllocationLost) as caught:
                ddp.run(config, hosts, record)
            return record, caught.value
        finally:
            job.kill()

    record, error = attempt(is_to_end=True)
    assert "TimeLimit" in str(error) or "TIMEOUT" in str(error)
    events = events_of(record)
    warned = [event["text"] for event in events if event["kind"] == "warned"]
    assert warned
    assert [text for text in warned if "the time limit of its Slurm job; saving" not in text] == []
    # Each node warns; what the second says may come after the save for the first.
    saved = [event["step"] for event in events if event["kind"] == "saved"]
    assert saved in ([WARNED_AFTER], [WARNED_AFTER, WARNED_AFTER + 1])
    record, outcome = attempt(is_to_end=False)
    assert (outcome.step, outcome.num_restarts) == (NUM_STEPS, 0)
    resumed = [event["step"] for event in events_of(record) if event["kind"] == "resumed"]
    assert resumed == saved[-1:]
