"""``monarch.job.spmd``: runs torchrun's commands on one host of a job of any kind.

``StoreJob`` is a job of the machines that torchrun itself has started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.actor import HostMesh, ProcMesh, attach_to_workers
from monarch.errors import JobError
from monarch.job import JobState, JobTrait, ProcessJob, SlurmJob
from monarch.job.contexts import DEFAULT_JOB_PATH
from monarch.spmd import SPMDActor
from monarch.spmd.store import StoreLike, worker_urls_from_store

_MESH = "workers"
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torchrun")
_FLAGS = ("standalone", "no-python", "run-path", "module")
_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}
_SCHEDULERS: dict[str, Callable[..., JobTrait]] = {
    "process": lambda **options: ProcessJob({_MESH: 1}, **options),
    "slurm": lambda **options: SlurmJob({_MESH: 1}, **options),
}


class TorchrunCommand(NamedTuple):
    """A torchrun command for one host: ``num_procs`` ranks run ``script_args``.

    ``script_args`` begins with ``-m`` or a script.
    """

    num_procs: int
    script_args: list[str]

    @classmethod
    def parse(cls, command: Sequence[str], *, any_nodes: bool = False) -> TorchrunCommand:
        """Parse a command such as ``torchrun --nproc-per-node=8 train.py``.

        Raises ``ValueError`` if it is no torchrun command, or one for several nodes. With
        ``any_nodes`` any number of nodes is accepted, and ignored.
        """
        words = [str(word) for word in command]
        rest = _behind_torchrun(words)
        options: dict[str, str] = {}
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word, equals, value = rest.pop(0).partition("=")
            name = _SHORT.get(word, word).lstrip("-").replace("_", "-")
            if name in _FLAGS:
                options[name] = "1"
            elif equals:
                options[name] = value
            elif rest:
                options[name] = rest.pop(0)
            else:
                raise ValueError(f"{word} needs a value")
        if rest[:1] == ["--"]:
            del rest[0]
        if not rest:
            raise ValueError(f"no script in {' '.join(words)!r}")
        if not any_nodes and options.get("nnodes", "1") not in ("1", "1:1"):
            raise ValueError(
                f"--nnodes={options['nnodes']}: a command is for one node; for several, spawn "
                "procs on the job's hosts, and use setup_torch_elastic_env"
            )
        if "no-python" in options:
            raise ValueError("--no-python: the ranks are Python processes, which run a script")
        number = options.get("nproc-per-node", "1")
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"--nproc-per-node={number}: give a number")
        return cls(int(number), (["-m"] if "module" in options else []) + rest)


def _behind_torchrun(words: list[str]) -> list[str]:
    if words and words[0].rpartition("/")[2] == "torchrun":
        return words[1:]
    for number in range(len(words) - 1):
        if words[number] == "-m" and words[number + 1] in _MODULES:
            return words[number + 2 :]
    raise ValueError(f"{' '.join(words)!r} is no torchrun command")


def _parse_torchrun(original_roles: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Return the script of a TorchX job with its arguments, and its number of ranks per node.

    Raises ``ValueError`` if the job has several roles, or does not run torchrun.
    """
    if len(original_roles) != 1:
        raise ValueError(f"a job of torchrun has one role, and this one {len(original_roles)}")
    role = original_roles[0]
    words = [str(word) for word in role.get("args", ())]
    if str(role.get("entrypoint", "")) in ("torchrun", "python", "python3"):
        words.insert(0, str(role["entrypoint"]))
    command = TorchrunCommand.parse(words, any_nodes=True)
    return command.script_args, command.num_procs


class SPMDJob:
    """A torchrun ``command`` that runs on the first host of ``job``.

    ``apply``, ``state`` and ``kill`` call the methods of ``job``.
    """

    def __init__(self, job: JobTrait, command: TorchrunCommand) -> None:
        self.job, self.command = job, command
        self._procs: ProcMesh | None = None

    @property
    def active(self) -> bool:
        return self.job.active

    def apply(self) -> None:
        """Make the allocation, unless this object has done so already."""
        self.job.apply()

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Return the job's hosts."""
        return self.job.state(cached_path)

    def can_run(self, spec: SPMDJob) -> bool:
        """Whether this allocation can also run ``spec``, a job with another command."""
        return self.job.can_run(spec.job)

    def run_spmd(self, cached_path: str | None = DEFAULT_JOB_PATH) -> None:
        """Run the command, in the environment that torchrun sets, and wait for its end.

        It can be run again, on the same host. Raises ``ActorError`` if a rank raises, or exits with
        another status than 0.
        """
        hosts: HostMesh = next(iter(self.state(cached_path)._hosts.values()))
        first = hosts.slice(**dict.fromkeys(hosts.sizes, 0)) if hosts.sizes else hosts
        procs = first.spawn_procs({"gpus": self.command.num_procs}, name="spmd")
        try:
            ranks = procs.spawn("spmd_main", SPMDActor)
            address, port = ranks.slice(gpus=0).get_host_port.call_one(None, ()).get()
            ranks.main.call(address, port, self.command.script_args).get()
        finally:
            procs.stop().get()

    def kill(self) -> None:
        """End the allocation."""
        self.job.kill()


def serve(
    appdef: Sequence[str],
    scheduler: str | JobTrait = "process",
    scheduler_cfg: Mapping[str, Any] | None = None,
) -> SPMDJob:
    """Return a job for ``["torchrun", "--nproc-per-node=8", "train.py", ...]``, not yet started.

    ``scheduler`` is a job of any kind, or the name of a kind: "process" or "slurm", whose other
    arguments are ``scheduler_cfg``. Raises ``ValueError`` for a command that cannot be run this
    way, and ``JobError`` for an unknown name.
    """
    if isinstance(appdef, str) or not isinstance(appdef, Sequence):
        raise ValueError(
            "give the command as a list, as in ['torchrun', '--nproc-per-node=8', ...]"
        )
    command = TorchrunCommand.parse(appdef)
    if isinstance(scheduler, JobTrait):
        if scheduler_cfg:
            raise ValueError("scheduler_cfg is for the name of a scheduler, and this is a job")
        job = scheduler
    elif scheduler in _SCHEDULERS:
        job = _SCHEDULERS[scheduler](**(scheduler_cfg or {}))
    else:
        raise JobError(
            f"there is no scheduler {scheduler!r} here; give a job, or one of: "
            f"{', '.join(_SCHEDULERS)}"
        )
    return SPMDJob(job, command)


class StoreJob(JobTrait):
    """A job of hosts that run already, at ``worker_addrs``, as the mesh ``name``.

    Ranks have started the hosts, and each host ends with its rank. ``kill`` does not end them.
    """

    def __init__(self, worker_addrs: Sequence[str], name: str) -> None:
        super().__init__()
        self.worker_addrs = list(worker_addrs)
        self.name = name

    @classmethod
    def from_store(
        cls,
        store: StoreLike | Any,
        *,
        monarch_port: int = 0,
        name: str = "monarch_worker",
        transport: str = "ipc",
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
    ) -> StoreJob | None:
        """Return the job, on rank 0; ``None`` on all other ranks, which have to call this as well.

        The arguments and errors are those of ``host_mesh_from_store`` of ``monarch.spmd``, which
        returns the hosts themselves.
        """
        urls = worker_urls_from_store(
            store,
            monarch_port=monarch_port,
            name=name,
            transport=transport,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
        )
        return None if urls is None else cls(urls, name)

    def state(self, cached_path: str | None = None) -> JobState:
        """Return the job's hosts.

        No state is kept unless ``cached_path`` is given: another program cannot use the hosts once
        the ranks have ended.
        """
        return super().state(cached_path)

    def _create(self, client_script: str | None) -> None: ...

    def _state(self) -> JobState:
        return JobState({self.name: attach_to_workers(name=self.name, workers=self.worker_addrs)})

    def _is_running(self) -> bool:
        return self.active

    def _kill(self) -> None: ...

    def urls(self) -> list[str]:
        return self.worker_addrs

    def can_run(self, spec: JobTrait) -> bool:
        return False
