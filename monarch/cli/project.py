"""A project's ``monarch.toml``: which hosts, and which folders they share.

[job]
kind = "process"
hosts = { trainers = 2 }
preload = ["torch"]

[workspace]
dirs = ["."]
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from monarch.cli.trust import HARMLESS_KINDS, require_trust
from monarch.config_file import ConfigError, load_config
from monarch.errors import JobError
from monarch_sync.workspace import Workspace

if TYPE_CHECKING:
    from monarch.job import JobTrait

PROJECT_FILE = "monarch.toml"
OWN_RUNS = "/runs/"  # the pattern for where `monarch run` keeps its runs
_COMING_UP_SECONDS = 30.0


@dataclass
class SSHSection:
    """How hosts of kind ssh are reached. Names, users and keys are for ~/.ssh/config."""

    python: str = "python3"  # the Python there, 3.10 or later; what it lacks of ours it is given
    args: list[str] = field(default_factory=list)  # for ssh, before the host
    port: int = 22222  # where each host listens; 0: at any port that is free
    gateway: str | None = None  # the only machine that is reached from here; it leads to the hosts


@dataclass
class SlurmSection:
    """The options of hosts of kind slurm, which are called nodes there."""

    python: str = "python3"  # the Python there, 3.10 or later; what it lacks of ours it is given
    port: int = 22222  # where each host listens
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = None  # as sbatch has it: "6:00:00"
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None  # on each node, as sbatch has it: "64G"
    exclusive: bool = True  # no other job on the nodes
    start_timeout: float | None = None  # seconds to wait in the queue
    gateway: str | None = (
        None  # a machine that reaches the nodes, as ssh knows it, if this does not
    )
    args: list[str] = field(default_factory=list)  # more options of sbatch


@dataclass
class KubernetesSection:
    """The options of hosts of kind kubernetes, which are pods. Without `image` and `template`, pods
    that run are attached to."""

    namespace: str = "default"
    image: str | None = None  # with a Python
    resources: dict[str, str] = field(default_factory=dict)  # of each pod: "nvidia.com/gpu" = "8"
    template: str | None = None  # a YAML file with a pod template, instead of an image
    selector: str | None = None  # the labels of pods that run, instead of both
    python: str = "python3"  # the Python in the pods; what it lacks of ours it is given
    port: int = 26600  # where each host listens
    gateway: str | None = None  # a pod that leads to the others: MESH-RANK, or one of another name
    kubeconfig: str | None = None  # by default as kubectl finds it
    context: str | None = None
    timeout: float | None = None  # seconds that pods may take to get a place
    grace_seconds: int = 30  # that a pod has left which is to go


@dataclass
class RaySection:
    """The address of the Ray cluster for hosts of kind ray, and the resources that each host
    takes."""

    address: str | None = None  # by default RAY_ADDRESS, or the cluster of this machine
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    timeout: float = 60.0  # seconds to get the nodes
    port: int = 0  # where each host listens; 0: at any port that is free


@dataclass
class SkyPilotSection:
    """The options of hosts of kind skypilot, as one cluster of it."""

    resources: dict[str, str] = field(default_factory=dict)  # as in a task's file of SkyPilot's
    cluster: str | None = None  # its name, by default one of its own
    idle_minutes: int | None = None  # after which SkyPilot takes it down
    setup: str | None = None  # what each machine runs first: that installs monarch
    python: str = "python3"
    port: int = 22222


@dataclass
class LightningSection:
    """The options of hosts of kind lightning: machines of one multi-machine job."""

    machine: str = "CPU"  # a name of lightning_sdk.Machine: "H100_X_8"
    studio: str | None = None  # by default the one that this runs in
    image: str | None = None  # instead of a studio
    options: dict[str, str] = field(default_factory=dict)  # more of MMT.run: teamspace, org, user
    python: str = "python"
    port: int = 26600
    timeout: float | None = None  # seconds to get the machines


@dataclass
class JobSection:
    """The allocation: what `monarch apply` brings up."""

    # local: none that outlives its command
    kind: Literal[
        "process", "local", "ssh", "slurm", "kubernetes", "ray", "skypilot", "lightning"
    ] = "process"
    # how many hosts each mesh has, by its name; for ssh, the names of its hosts
    hosts: dict[str, int | list[str]] = field(default_factory=lambda: {"hosts": 1})
    env: dict[str, str] = field(default_factory=dict)  # variables that all processes there get
    # modules that a host imports once, so that its processes start in milliseconds
    preload: list[str] = field(default_factory=list)
    ssh: SSHSection = field(default_factory=SSHSection)
    slurm: SlurmSection = field(default_factory=SlurmSection)
    kubernetes: KubernetesSection = field(default_factory=KubernetesSection)
    ray: RaySection = field(default_factory=RaySection)
    skypilot: SkyPilotSection = field(default_factory=SkyPilotSection)
    lightning: LightningSection = field(default_factory=LightningSection)

    def __post_init__(self) -> None:
        for name, hosts in self.hosts.items():
            if isinstance(hosts, int) == (self.kind == "ssh"):
                expected = (
                    'the names of its hosts, as in { trainers = ["gpu1", "gpu2"] }'
                    if self.kind == "ssh"
                    else "a number, as in { trainers = 2 }"
                )
                raise ConfigError(f"{name!r}: kind {self.kind!r} needs {expected}", key="hosts")
        if not self.hosts or any(num < 1 for num in self.num_hosts().values()):
            raise ConfigError("every mesh needs at least one host", key="hosts")

    def num_hosts(self) -> dict[str, int]:
        """Return how many hosts each mesh has."""
        return {
            name: hosts if isinstance(hosts, int) else len(hosts)
            for name, hosts in self.hosts.items()
        }


@dataclass
class WorkspaceSection:
    """The folders that hosts get a copy of."""

    dirs: list[str] = field(default_factory=lambda: ["."])  # relative to this file
    # patterns as in .gitignore of what stays here; what git ignores does so anyway
    ignore: list[str] = field(default_factory=list)
    editable: bool = True  # packages that are installed here as editable come along


@dataclass
class DebugSection:
    """The handling of calls that fail, for `monarch debug`."""

    # which calls stand where an endpoint raises, in the runs of this folder: "" for none
    on_error: Literal["", "first", "all"] = ""


@dataclass
class ProjectFile:
    """All that ``monarch.toml`` may hold."""

    job: JobSection = field(default_factory=JobSection)
    workspace: WorkspaceSection = field(default_factory=WorkspaceSection)
    debug: DebugSection = field(default_factory=DebugSection)
    roles: dict[str, int] = field(default_factory=dict)
    """Procs of each role, of recipes that have roles: `train = 4`, `eval = 2`."""


class Project(NamedTuple):
    """The contents of ``monarch.toml``, and its folder; ``path`` is the file's."""

    file: ProjectFile
    directory: Path
    name: str = PROJECT_FILE

    @property
    def path(self) -> Path:
        return self.directory / self.name

    def make_job(self) -> JobTrait:
        """Return the job that the file asks for.

        Only for a trusted project (`monarch/cli/trust.py`), since its author chooses what the job
        runs.
        """
        job = self._make_job()
        folder = Path.cwd()
        inside = self.path.is_relative_to(folder)  # It moves with its folder then.
        job.project_file = str(self.path.relative_to(folder) if inside else self.path)
        return job

    def _make_job(self) -> JobTrait:
        from monarch.job import LocalJob, ProcessJob

        job = self.file.job
        if job.kind == "local":
            return LocalJob(tuple(job.hosts))
        if job.kind == "ssh":
            return self._make_ssh_job(job)
        if job.kind == "slurm":
            return _make_slurm_job(job)
        if job.kind == "kubernetes":
            return self._make_kubernetes_job(job)
        if job.kind in ("ray", "skypilot", "lightning"):
            return self._make_cloud_job(job)
        return ProcessJob(job.num_hosts(), job.env, job.preload)

    def _make_ssh_job(self, section: JobSection) -> JobTrait:
        from monarch.job import SSHJob

        ssh = section.ssh
        job = SSHJob(
            ssh.python, ssh.args, ssh.port, env=section.env, preload=section.preload,
            gateway=ssh.gateway,
        )  # fmt: skip
        try:
            for name, hosts in section.hosts.items():
                job.add_mesh(name, hosts if isinstance(hosts, list) else [])
        except ValueError as error:
            raise ConfigError(f"[job] in {self.directory / PROJECT_FILE}: {error}") from None
        return job

    def _make_kubernetes_job(self, section: JobSection) -> JobTrait:
        from monarch.job.kinds.kubernetes import ImageSpec, KubeConfig, KubernetesJob

        pods = section.kubernetes
        path = None if pods.kubeconfig is None else str(self.directory / pods.kubeconfig)
        job = KubernetesJob(
            pods.namespace, pods.timeout, KubeConfig(path, context=pods.context), pods.gateway,
            python_exe=pods.python, grace_seconds=pods.grace_seconds, env=section.env,
            preload=section.preload,
        )  # fmt: skip
        image = None if pods.image is None else ImageSpec(pods.image, pods.resources)
        template = None if pods.template is None else _read_yaml(self.directory / pods.template)
        try:
            for name, num_hosts in section.num_hosts().items():
                job.add_mesh(
                    name, num_hosts, pods.selector, image_spec=image, port=pods.port,
                    pod_template=template,
                )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"[job] in {self.directory / PROJECT_FILE}: {error}") from None
        return job

    def _make_cloud_job(self, section: JobSection) -> JobTrait:
        from monarch.job import LightningJob, RayJob, SkyPilotJob

        hosts, env, preload = section.num_hosts(), section.env, section.preload
        if section.kind == "ray":
            ray = section.ray
            return RayJob(
                hosts, ray.address, ray.resources, env, timeout=ray.timeout,
                monarch_port=ray.port, preload=preload,
            )  # fmt: skip
        if section.kind == "skypilot":
            sky = section.skypilot
            return SkyPilotJob(
                hosts, sky.resources, sky.cluster, sky.port, sky.idle_minutes,
                python_exe=sky.python, setup_commands=sky.setup, env=env, preload=preload,
            )  # fmt: skip
        if len(hosts) != 1:
            raise ConfigError("kind 'lightning' has one mesh", key="hosts")
        [(mesh, num_hosts)] = hosts.items()
        lightning = section.lightning
        return LightningJob(
            num_hosts, lightning.machine, mesh=mesh, studio=lightning.studio, image=lightning.image,
            options=lightning.options, python_exe=lightning.python, monarch_port=lightning.port,
            timeout=lightning.timeout, env=env, preload=preload,
        )  # fmt: skip

    def make_workspace(self) -> Workspace:
        """Return the workspace of the project.

        A single folder becomes the replica's root. Each of several folders has its own path, or its
        name if it is outside the project. Raises ``ConfigError`` if two folders get the same path,
        or if the section has an invalid value.
        """
        section = self.file.workspace
        landings = {folder: self._landing(folder) for folder in section.dirs}
        dirs: dict[str | os.PathLike[str], str] = {}
        for folder, landing in landings.items():
            local = (self.directory / folder).resolve()
            if landing in dirs.values() and dirs.get(local) != landing:
                folders = [other for other in landings if landings[other] == landing]
                raise self._mistake(f"{folders[0]!r} and {folder!r} would both land in {landing!r}")
            dirs[local] = "" if len(section.dirs) == 1 else landing
        ignore = [*self._ignored_by_default(dirs), *section.ignore]
        try:
            return Workspace(dirs, ignore=ignore, editable=section.editable)
        except ValueError as error:
            raise self._mistake(str(error)) from None

    def _ignored_by_default(self, dirs: Iterable[str | os.PathLike[str]]) -> list[str]:
        """Return the pattern for the folder of runs, in a list; empty if it should not be ignored.

        It is ignored if it is in the workspace, unless another program has a folder of that name
        there.
        """
        run_folders = [Path(folder) / OWN_RUNS.strip("/") for folder in dirs]
        project_runs = self.directory.resolve() / OWN_RUNS.strip("/")
        is_free = all(not path.exists() or _is_of_runs(path) for path in run_folders)
        return [OWN_RUNS] if project_runs in run_folders and is_free else []

    def _landing(self, folder: str) -> str:
        local = os.path.abspath(self.directory / folder)
        relative = os.path.relpath(local, self.directory)
        return os.path.basename(local) if f"{relative}/".startswith("../") else relative

    def _mistake(self, text: str) -> ConfigError:
        return ConfigError(f"[workspace] in {self.directory / PROJECT_FILE}: {text}")


def _make_slurm_job(section: JobSection) -> JobTrait:
    from monarch.job import SlurmJob

    slurm = section.slurm
    return SlurmJob(
        section.num_hosts(), slurm.python, slurm.args, slurm.port,
        time_limit=slurm.time_limit, partition=slurm.partition, exclusive=slurm.exclusive,
        gpus_per_node=slurm.gpus_per_node, cpus_per_task=slurm.cpus_per_task, mem=slurm.mem,
        job_start_timeout=slurm.start_timeout, attach_to=slurm.gateway, account=slurm.account,
        qos=slurm.qos, env=section.env, preload=section.preload,
    )  # fmt: skip


def _read_yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise JobError(
            "a job of kind kubernetes needs Kubernetes' client library: "
            "pip install 'monarch-loop[kubernetes]'"
        ) from None
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the pod template {path}: {error}") from None


def _is_of_runs(folder: Path) -> bool:
    """Whether a run has made the folder: a run writes a ``.gitignore`` of ``*`` into it."""
    try:
        return (folder / ".gitignore").read_text() == "*\n"
    except OSError:
        return False


def load_project(path: str | None) -> Project:
    """Return the project of the file ``path``; ``None`` is ``monarch.toml`` in this folder.

    If this folder has no ``monarch.toml``, the project has the defaults. Raises ``JobError`` if
    ``path`` does not exist.
    """
    file = Path(path or PROJECT_FILE)
    if file.exists():
        real = file.resolve()
        return Project(load_config(ProjectFile, file).config, real.parent, real.name)
    if path is not None:
        raise JobError(f"there is no {path}")
    return Project(ProjectFile(), Path.cwd())


def noted_job() -> JobTrait | None:
    """Return the job that was started for this folder; ``None`` if there was none.

    It may have ended since.
    """
    from monarch.job import DEFAULT_JOB_PATH, job_load

    try:
        job = job_load(DEFAULT_JOB_PATH)
    except FileNotFoundError:
        return None
    if job.project_file and job.kind not in HARMLESS_KINDS:
        job.take_ways(_project_of(job).make_job())
    return job


def _project_of(job: JobTrait) -> Project:
    """Return the current project file of a job, which has the commands to reach its hosts.

    Raises ``JobError`` if it is gone, or runs other commands than were agreed to.
    """
    from monarch.job.places import place_of

    place = place_of(job._state_path) if job._state_path is not None else None
    try:
        project = load_project(os.path.join(place.path if place else "", job.project_file))
    except JobError:
        raise JobError(
            f"{job.project_file} is gone, which says how the hosts of this {job.kind} job are "
            "reached: put it there again"
        ) from None
    require_trust(project, may_ask=False)
    return project


def find_job() -> JobTrait | None:
    """Return the running allocation of this folder, or ``None``."""
    job = noted_job()
    return job if job is not None and job.is_running() else None


def may_come_up(job: JobTrait) -> bool:
    """Whether a host without a listening process may still be starting, because it was started just
    now.
    """
    from monarch.job import DEFAULT_JOB_PATH
    from monarch.job.places import record_of

    try:
        age = time.time() - record_of(DEFAULT_JOB_PATH).stat().st_mtime
    except OSError:
        return False
    return abs(age) < _COMING_UP_SECONDS and job.is_running()


def no_allocation() -> JobError:
    """Return the error for a folder without a running allocation; it says why."""
    job = noted_job()
    if job is None:
        return JobError(
            f"no allocation is up for this folder: start one with `monarch apply`{other_states()}"
        )
    reason = job.why_ended().strip()
    detail = f"\n{reason}" if reason else ""
    return JobError(
        "no allocation is up for this folder: the one that was has ended, or some of its hosts "
        f"have. Start it again with `monarch apply`, or tidy up with `monarch kill`.{detail}"
    )


def other_states() -> str:
    """Return lines about jobs that a person may mistake for this folder's; "" if there are none.

    They name allocations that were brought up for another folder. If there are none, they explain a
    state file in this folder that has no effect.
    """
    from monarch.job import DEFAULT_JOB_PATH
    from monarch.job.contexts import JOB_PATH_VARIABLE
    from monarch.job.places import left_behind, states_in
    from monarch.job.state_folder import state_path

    lines = []
    for state in left_behind(Path()):
        machine = "" if state.place.machine_is_this else f" on {state.place.host}"
        lines.append(
            f"one was brought up for another folder, {state.place.path}{machine}. Its hosts are "
            f"found with {JOB_PATH_VARIABLE}={shlex.quote(str(state.record))} in the environment: "
            "`monarch status`, or `monarch kill`"
        )
    # With a state of another context, the file is a note of ours.
    if not lines and os.path.lexists(DEFAULT_JOB_PATH) and not states_in(Path()):
        lines.append(
            f"{DEFAULT_JOB_PATH} has no effect: it came with a copy of a folder, or is of an older "
            "release, which alone can end the hosts that it tells of; the state of jobs is in "
            f"{state_path()} by now"
        )
    return "".join(f"\n{line}" for line in lines)
