"""The kinds of job that the contract holds for, and how a test makes one of each."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.job import (
    JobTrait,
    LightningJob,
    ProcessJob,
    RayJob,
    SkyPilotJob,
    SlurmJob,
    SSHJob,
)
from monarch.job.kinds.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from monarch.wire.message import HostState
from tests.job.fakes.kube_server import KubeServer
from tests.job.kube_cluster import KubeCluster, pod_template
from tests.job.ray_cluster import RayCluster
from tests.job.slurm_cluster import SlurmCluster
from tests.job.sshd import Sshd

FAKES = Path(__file__).parent / "fakes"
SDKS = FAKES / "sdks"
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
    if kind.startswith("ray"):
        return RayJob(
            meshes,
            os.environ["CONTRACT_RAY"],
            env=env,
            monarch_port=int(os.environ["CONTRACT_PORT"]),
        )
    if kind == "skypilot_fake":
        port = int(os.environ["CONTRACT_PORT"])
        return SkyPilotJob(
            meshes, {"cpus": 4}, monarch_port=port, python_exe=sys.executable, env=env
        )
    if kind == "lightning_fake":
        [(mesh, num)] = meshes.items()
        port = int(os.environ["CONTRACT_PORT"])
        return LightningJob(
            num, "CPU", mesh=mesh, monarch_port=port, python_exe=sys.executable, env=env
        )
    args = os.environ["CONTRACT_SSH_ARGS"].split()
    job = SSHJob(sys.executable, args, monarch_port=0, env=env)
    for mesh, num in meshes.items():
        job.add_mesh(mesh, [f"gpu-{mesh}{index}" for index in range(num)])
    return job


def use_fake_sdks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have ``ray``, ``sky`` and ``lightning_sdk`` be those of ``fakes/sdks``, also in programs."""
    (folder / "cloud").mkdir()
    monkeypatch.setenv("FAKE_CLOUD", str(folder / "cloud"))
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{SDKS}:{path}" if path else str(SDKS))
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("ray", "sky", "lightning_sdk"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(SDKS))
    # They are gone again after the test, whatever was there before.
    for name in ("ray", "sky", "lightning_sdk"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))


class Kind:
    """One of them, with what it needs on this machine."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.name = name
        self._server: Sshd | KubeServer | None = None
        self.slurm: SlurmCluster | None = None
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
        elif name in _FAKES_OF_SDKS:
            use_fake_sdks(monkeypatch, folder)
            monkeypatch.setenv("CONTRACT_RAY", "here")
            monkeypatch.setenv("CONTRACT_PORT", str(free_port()))
        elif name == "ray":
            monkeypatch.setenv("CONTRACT_RAY", RayCluster.shared().address)
            monkeypatch.setenv("CONTRACT_PORT", "0")  # All of its nodes have one address.
        elif name == "slurm":
            self.slurm = cluster = SlurmCluster.shared()
            cluster.clear()
            monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
            monkeypatch.setenv("CONTRACT_PORT", str(free_port()))
            monkeypatch.chdir(folder)

    @property
    def can_repair(self) -> bool:
        """Whether a single host of it can be brought up again."""
        return not self.replaces

    @property
    def has_one_mesh(self) -> bool:
        """Whether its jobs have but one."""
        return self.name.startswith("lightning")

    @property
    def moves(self) -> bool:
        """Whether a host that comes again is at another address."""
        return self.name == "ray"

    @property
    def is_inside_pods(self) -> bool:
        """Whether processes on its hosts have numbers of their own."""
        return self.name == "kubernetes"

    @property
    def replaces(self) -> bool:
        """Whether a host that is lost comes again by itself."""
        return self.name.startswith(("slurm", "kubernetes", "ray", "skypilot", "lightning"))

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
        if self.name.startswith("ray"):
            return (
                f'[job]\nkind = "ray"\nhosts = {{ trainers = 2 }}\n{env}[job.ray]\n'
                f'address = "{os.environ["CONTRACT_RAY"]}"\nport = {os.environ["CONTRACT_PORT"]}\n'
            )
        if self.name in ("skypilot_fake", "lightning_fake"):
            kind = self.name.removesuffix("_fake")
            return (
                f'[job]\nkind = "{kind}"\nhosts = {{ trainers = 2 }}\n{env}[job.{kind}]\n'
                f'python = "{sys.executable}"\nport = {os.environ["CONTRACT_PORT"]}\n'
            )
        args = os.environ["CONTRACT_SSH_ARGS"].split()
        return (
            f'[job]\nkind = "ssh"\nhosts = {{ trainers = ["gpu1", "gpu2"] }}\n{env}'
            f'[job.ssh]\npython = "{sys.executable}"\nport = 0\nargs = {args}\n'
        )

    def close(self) -> None:
        if is_bootstrapped():
            shutdown_context().get()  # It may have asked hosts that it is no client of.
        if self.name == "ray":
            importlib.import_module("ray").shutdown()
        if self._server is not None:
            self._server.close()
        if self.slurm is not None:
            self.slurm.clear()


def _write_template() -> str:
    """A file with the template of the real cluster's pods."""
    path = Path(os.environ["KUBECONFIG"]).parent / "template.yaml"
    path.write_text(json.dumps(pod_template()))
    return str(path)


_FAKES_OF_SDKS = ("ray_fake", "skypilot_fake", "lightning_fake")
_REAL = [
    pytest.param(name, marks=pytest.mark.system) for name in ("ssh", "slurm", "kubernetes", "ray")
]
KINDS = ["process", "ssh_fake", "slurm_fake", "kubernetes_fake", *_FAKES_OF_SDKS, *_REAL]
# For tests of several programs, which take long: what these have in common has many kinds already.
KINDS_OF_PROGRAMS = [
    "process",
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in ("ssh_fake", "slurm_fake", "kubernetes_fake")
    ),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in _FAKES_OF_SDKS),
    *_REAL,
]


def agent_pids(job: JobTrait) -> list[int]:
    """Of the host agents that answer; all hosts are this machine."""
    addresses = {url: job.visit(url) for url in job.urls()}
    found = inspect_hosts(client().node, addresses)
    return [_pid_here(told.answer) for told in found.values() if not told.error]


def _pid_here(host: HostState) -> int:
    """The pid of an agent in the numbers of this machine: a pod has its own."""
    inside, pod = host.pid, f"MONARCH_POD_NAME={host.host}".encode()
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
