"""The examples of hosts that one logs in to, and of a scheduler's, bring up hosts and end them."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.job.kinds import MARK, Kind, processes_marked
from tests.job.kube_cluster import pod_template
from tests.support import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 100


@pytest.fixture
def kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Kind]:
    made = Kind(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


def output(folder: Path, example: str, *arguments: str, **environment: str) -> list[str]:
    """The lines that an example prints, run in ``folder``."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["ssh_fake", pytest.param("ssh", marks=pytest.mark.system)], indirect=True
)
def test_hosts_by_name_describe_themselves(kind: Kind, mark: str, tmp_path: Path) -> None:
    machine = re.escape(f"{os.uname().nodename}: {os.cpu_count()} CPUs, Python ")
    # A login has an environment of its own: there it is the Python that has the mark.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{MARK}={mark} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ssh_args = os.environ["CONTRACT_SSH_ARGS"]
    lines = output(
        tmp_path, "ssh/hosts.py", "gpu1", "gpu2", MONARCH_PYTHON=str(python), SSH_ARGS=ssh_args
    )
    assert len(lines) == 2
    for name, line in zip(("gpu1", "gpu2"), lines, strict=True):
        assert re.fullmatch(rf"{name} is {machine}[\d.]+", line)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("slurm_fake", marks=pytest.mark.slow),
        pytest.param("slurm", marks=pytest.mark.system),
    ],
    indirect=True,
)
def test_the_workflow_of_a_cluster_trains_and_gives_its_nodes_back(
    kind: Kind, mark: str, tmp_path: Path
) -> None:
    lines = output(
        tmp_path, "slurm/workflow.py", "2", "1",
        MONARCH_PORT=os.environ["CONTRACT_PORT"], **{MARK: mark},
    )  # fmt: skip
    told = [line for line in lines if "Ping!" in line]  # in one line, where both come at once
    assert set(re.findall(r"\[(trainer_\d)\]", " ".join(told))) == {"trainer_0", "trainer_1"}
    # What the ranks print may still come after it.
    [losses] = [line.split()[1:] for line in lines if line.startswith("losses ")]
    assert losses[0] == losses[1]
    assert float(losses[0]) < 0.01
    assert not (tmp_path / ".monarch/job_state.json").exists()
    assert list((tmp_path / ".monarch/logs").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kubernetes_fake"], indirect=True)
def test_pods_describe_themselves(kind: Kind, tmp_path: Path) -> None:
    lines = output(
        tmp_path, "kubernetes/hosts.py", "trainers", "2", "--image", "python",
        "--python", sys.executable,
    )  # fmt: skip
    machine = f"{os.uname().nodename}: {os.cpu_count()} CPUs, Python "
    assert [line.startswith(machine) for line in lines] == [True, True]


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["kubernetes"], indirect=True)
def test_a_real_clusters_pods_describe_themselves_and_stay(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "workers.yaml").write_text(yaml.safe_dump_all(_manifest_with_this_python()))

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            ["kubectl", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def uids() -> list[str]:
        template = "jsonpath={.items[?(@.status.phase=='Running')].metadata.uid}"
        return kubectl("get", "pods", "-l", f"{_MESH_LABEL}=workers", "-o", template).split()

    secret = f"secret={secrets.token_hex(32)}"
    kubectl("create", "secret", "generic", "monarch", f"--from-literal={secret}")
    try:
        kubectl("apply", "-f", "workers.yaml")
        lines = output(
            tmp_path, "kubernetes/hosts.py", "workers", "2", "--python", sys.executable
        )  # fmt: skip
        assert sorted(line.partition(":")[0] for line in lines) == ["workers-0", "workers-1"]
        pods = uids()
        assert len(pods) == 2
        # They are not the program's to end: another one attaches to the same.
        assert len(output(tmp_path, "kubernetes/hosts.py", "workers", "2")) == 2
        assert uids() == pods
    finally:
        kubectl("delete", "-f", "workers.yaml", "--grace-period=5")
        kubectl("delete", "secret", "monarch")


_MESH_LABEL = "monarch.pytorch.org/mesh-name"


def _manifest_with_this_python() -> list[dict[str, Any]]:
    """The example's own manifest; its image has no Python here, so pods have this machine's."""
    service, pods = yaml.safe_load_all((EXAMPLES / "kubernetes/workers.yaml").read_text())
    spec, ours = pods["spec"]["template"]["spec"], pod_template()["spec"]
    (worker,), (mounted,) = spec["containers"], ours.pop("containers")
    worker["command"][0] = sys.executable
    for key, value in mounted.items():
        worker[key] = [*worker[key], *value] if isinstance(value, list) else value
    spec["volumes"] += ours.pop("volumes")
    spec.update(ours)
    return [service, pods]


def test_the_manifest_of_pods_to_attach_to_is_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for one in yaml.safe_load_all((EXAMPLES / "kubernetes/workers.yaml").read_text()):
        validate.validate(one, "1.31", strict=True)
