"""The kinds of job that the contract holds for, and how a test makes one of each."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.job import JobTrait, ProcessJob, SlurmJob, SSHJob
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import ask_hosts
from monarch.runtime.process import is_bootstrapped
from tests.job.fakes.kube_server import KubeServer
from tests.job.kube_cluster import KubeCluster, pod_template
from tests.job.slurm_cluster import SlurmCluster
from tests.job.sshd import Sshd, free_port

FAKES = Path(__file__).parent / "fakes"
MARK = "CONTRACT_MARK"


def make(kind: str, meshes: Mapping[str, int], mark: str) -> JobTrait:
    """A job of a kind. All processes on its hosts have ``mark`` in their environment.

    Programs make theirs with it, too; what tells ssh from its fake is in the environment then.
    """
    env = {MARK: mark}
    if kind == "process":
        return ProcessJob(dict(meshes), env=env)
    if kind.startswith("slurm"):
        port = int(os.environ["CONTRACT_PORT"])
        return SlurmJob(meshes, sys.executable, monarch_port=port, env=env)
    if kind.startswith("kubernetes"):
        config = KubeConfig.from_path(os.environ["KUBECONFIG"])
        pods = KubernetesJob(
            "default", 60.0, config, python_exe=sys.executable, grace_seconds=10, env=env
        )
        for mesh, num in meshes.items():
            if kind == "kubernetes":
                pods.add_mesh(mesh, num, pod_template=pod_template())
            else:
                pods.add_mesh(mesh, num, image_spec=ImageSpec("python"))
        return pods
    args = os.environ["CONTRACT_SSH_ARGS"].split()
    job = SSHJob(sys.executable, args, monarch_port=0, env=env)
    for mesh, num in meshes.items():
        job.add_mesh(mesh, [f"gpu-{mesh}{index}" for index in range(num)])
    return job


class Kind:
    """One of them, with what it needs on this machine."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.name = name
        self._server: Sshd | SlurmCluster | KubeServer | KubeCluster | None = None
        if name == "ssh_fake":
            monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
            monkeypatch.setenv("CONTRACT_SSH_ARGS", "")
        elif name == "slurm_fake":
            (folder / "slurm").mkdir()
            monkeypatch.setenv("PATH", f"{FAKES}/slurm:{os.environ['PATH']}")
            monkeypatch.setenv("FAKE_SLURM", str(folder / "slurm"))
            monkeypatch.setenv("CONTRACT_PORT", str(free_port()))
            monkeypatch.chdir(folder)  # for the logs
        elif name == "kubernetes_fake":
            self._server = server = KubeServer()
            config = folder / "kubeconfig"
            config.write_text(json.dumps(server.kubeconfig))  # which is YAML, too
            monkeypatch.setenv("KUBECONFIG", str(config))
        elif name == "kubernetes":
            monkeypatch.setenv("KUBECONFIG", str(KubeCluster.shared().kubeconfig))
        elif name == "ssh":
            self._server = sshd = Sshd(folder)
            monkeypatch.setenv("CONTRACT_SSH_ARGS", f"-F {sshd.config}")
        elif name == "slurm":
            short = Path(tempfile.mkdtemp(prefix="mt-sl-", dir="/tmp"))
            try:
                self._server = cluster = SlurmCluster(short, num_nodes=3)
            except pytest.skip.Exception:
                short.rmdir()
                raise
            monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
            monkeypatch.setenv("CONTRACT_PORT", str(free_port()))
            monkeypatch.chdir(folder)

    @property
    def can_repair(self) -> bool:
        """Whether a single host of it can be brought up again."""
        return not self.replaces

    @property
    def is_inside_pods(self) -> bool:
        """Whether processes on its hosts have numbers of their own."""
        return self.name == "kubernetes"

    @property
    def replaces(self) -> bool:
        """Whether a host that is lost comes again by itself."""
        return self.name.startswith(("slurm", "kubernetes"))

    def make(self, meshes: Mapping[str, int], mark: str) -> JobTrait:
        return make(self.name, meshes, mark)

    def toml(self, mark: str) -> str:
        """The ``[job]`` of two hosts."""
        env = f'env = {{ {MARK} = "{mark}" }}\n'
        if self.name == "process":
            return f'[job]\nkind = "process"\nhosts = {{ trainers = 2 }}\n{env}'
        if self.name.startswith("slurm"):
            return (
                f'[job]\nkind = "slurm"\nhosts = {{ trainers = 2 }}\n{env}'
                f'[job.slurm]\npython = "{sys.executable}"\nport = {os.environ["CONTRACT_PORT"]}\n'
            )
        if self.name.startswith("kubernetes"):
            template = (
                'image = "python"\n'
                if self.name.endswith("fake")
                else f'template = "{_write_template()}"\n'
            )
            return (
                f'[job]\nkind = "kubernetes"\nhosts = {{ trainers = 2 }}\n{env}'
                f'[job.kubernetes]\npython = "{sys.executable}"\n'
                f"grace_seconds = 10\n{template}"
            )
        args = os.environ["CONTRACT_SSH_ARGS"].split()
        return (
            f'[job]\nkind = "ssh"\nhosts = {{ trainers = ["gpu1", "gpu2"] }}\n{env}'
            f'[job.ssh]\npython = "{sys.executable}"\nport = 0\nargs = {args}\n'
        )

    def close(self) -> None:
        if is_bootstrapped():
            shutdown_context().get()  # It may have asked hosts that it is no client of.
        if self._server is not None:
            self._server.close()


def _write_template() -> str:
    """A file with the template of the real cluster's pods."""
    path = Path(os.environ["KUBECONFIG"]).parent / "template.yaml"
    path.write_text(json.dumps(pod_template()))
    return str(path)


KINDS = [
    "process",
    "ssh_fake",
    "slurm_fake",
    "kubernetes_fake",
    *(pytest.param(name, marks=pytest.mark.system) for name in ("ssh", "slurm", "kubernetes")),
]


def agent_pids(job: JobTrait) -> list[int]:
    """Of the host agents that answer; all hosts are this machine."""
    addresses = {url: job.visit(url) for url in job.urls()}
    found = ask_hosts(client().node, addresses)
    return [_pid_here(answer) for answer in found.values() if "error" not in answer]


def _pid_here(answer: Mapping[str, Any]) -> int:
    """The pid of an agent in the numbers of this machine: a pod has its own."""
    inside, pod = int(answer["pid"]), f"MONARCH_POD_NAME={answer['host']}".encode()
    for folder in Path("/proc").iterdir():
        try:
            numbers = re.search(r"NSpid:\s+(.*)", (folder / "status").read_text())
            is_inside = numbers is not None and int(numbers[1].split()[-1]) == inside
            # In a namespace of pids, several have the same: the pod tells them apart.
            if is_inside and pod in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except (OSError, ValueError):
            continue
    return inside


def processes_marked(mark: str) -> list[str]:
    """The processes on the hosts of the jobs that were made with ``mark``."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            is_scheduler = "fakes/slurm/sbatch" in command  # It is what looks after the job.
            is_marked = sought in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if is_marked and not is_scheduler:
                found.append(f"{pid} {command}")
        except OSError:
            continue  # It has ended, or is another user's.
    return found
