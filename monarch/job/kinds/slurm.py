"""Jobs on nodes of a Slurm cluster."""

from __future__ import annotations

import glob
import ipaddress
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch.errors import JobError
from monarch.job.bundle.bundle_offer import python_arguments
from monarch.job.contexts import DEFAULT_JOB_PATH
from monarch.job.job import JobState, keep_from_git
from monarch.job.kinds.remote import GatewayLogin, job_secret
from monarch.job.kinds.scheduled import (
    LONGEST_LOOK_SECONDS,
    SHORTEST_LOOK_SECONDS,
    PlacedHost,
    ScheduledJob,
    wait_for_place,
)
from monarch.runtime.entry.slurm_task import BIND_TO, limit_seconds, node_addresses

_LIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING",
    "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
}  # fmt: skip
# The attributes of a job that are options of sbatch with the same name.
_OPTIONS = (
    "ntasks_per_node", "partition", "account", "qos", "mem", "gpus_per_node", "cpus_per_task",
)  # fmt: skip
# Reasons for which Slurm leaves a job pending for ever.
_HOPELESS = {
    "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
    "InvalidQOS", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed",
}  # fmt: skip
_GONE_SECONDS = 90.0
_WARNING_SECONDS = 120.0
_UNANSWERED_SECONDS = 60.0
_TAIL_LINES = 8


class _JobStatus(NamedTuple):
    """A job's state from squeue; ``state`` is "" if squeue does not know the job any more."""

    state: str
    nodes: str = ""
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE


class SlurmJob(ScheduledJob):
    """``SlurmJob(meshes={"trainers": 2})``: a number of nodes for each mesh, in one job of Slurm.

    ``python_exe`` is the Python on the nodes, 3.10 or later; without monarch it gets ours. Each
    host listens at ``monarch_port``, of all interfaces unless ``bind_to`` is the IP address of one.
    ``time_limit``, ``partition``, ``account``, ``qos``, ``mem``, ``gpus_per_node``,
    ``cpus_per_task``, ``ntasks_per_node`` and ``exclusive`` are sbatch's options of these names;
    ``slurm_args`` are further options. The nodes' output is in ``log_dir``, by default
    ``.monarch/logs``, which must be a folder that they share with this machine. Waiting in the
    queue ends with an error after ``job_start_timeout`` seconds. ``env`` is added to the hosts'
    environment, ``preload`` names modules that each imports ahead.

    If this machine has Slurm's commands but does not reach the nodes, ``attach_to`` is the ssh name
    of a machine that does, such as a login node: all messages pass through one connection to it.
    ``out_of_cluster=True`` alone uses the job's first node.

    ``apply("train.py")`` runs that program on the job's first node: there the same ``SlurmJob``
    finds its own nodes, and the job ends with the program.
    """

    kind = "slurm"
    _KEPT = (
        *_OPTIONS, "python_exe", "slurm_args", "monarch_port", "job_name", "time_limit", "log_dir",
        "exclusive", "job_start_timeout", "out_of_cluster", "attach_to", "bind_to",
    )  # fmt: skip

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = "python",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool = False,
        attach_to: str | None = None,
        bind_to: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(meshes, env, preload)
        if attach_to is not None and "://" in attach_to:
            raise ValueError(
                f"attach_to={attach_to!r} is an address: name a machine that reaches the nodes, as "
                "ssh knows it"
            )
        self.out_of_cluster = out_of_cluster
        self.attach_to = attach_to
        self.bind_to = _ip_address(bind_to)
        self.python_exe = python_exe
        self.slurm_args = list(slurm_args)
        self.monarch_port = monarch_port
        self.job_name = job_name
        self.ntasks_per_node = ntasks_per_node
        self.time_limit = time_limit
        self.partition = partition
        self.log_dir = log_dir
        self.exclusive = exclusive
        self.gpus_per_node = gpus_per_node
        self.cpus_per_task = cpus_per_task
        self.mem = mem
        self.job_start_timeout = job_start_timeout
        self.account = account
        self.qos = qos
        #: Slurm's id of the job; "" without an allocation.
        self.job_id = ""
        #: The path of its output files, without their suffix.
        self._logs = ""
        #: The nodes of the known hosts, in Slurm's notation.
        self._nodes = ""

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """Add a mesh of nodes. Raises ``ValueError`` for a name that is taken, or without nodes."""
        self._add(name, num_nodes)

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Return the job's hosts, as ``JobTrait.state``.

        A program in a batch job of Slurm gets the nodes of that job, whatever state is kept.
        """
        return super().state(None if _own_job_id() else cached_path)

    def _create(self, client_script: str | None) -> None:
        if not self._meshes:
            raise JobError("the job has no meshes: `add_mesh(name, num_nodes)`")
        self._secret = job_secret()
        if own := _own_job_id():
            self.job_id = own
            return
        logs = os.path.abspath(self.log_dir or os.path.join(".monarch", "logs"))
        os.makedirs(logs, exist_ok=True)
        if not self.log_dir:
            keep_from_git(Path(logs).parent)
        name = f"{self.job_name}_{os.getpid()}"
        output = f"{logs}/slurm_%j_{self.job_name}"
        # A job that loses a node is queued again; its output is appended to the same files.
        command = [
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--output={output}.out",
            f"--error={output}.err",
            "--requeue",
            "--open-mode=append",
            f"--signal=USR1@{self._warning_seconds()}",
            *self.sbatch_options(),
            "--export=ALL",
        ]
        # The secret is in the environment: arguments and scripts may be visible to others.
        environment = {**os.environ, **self.env, "MONARCH_JOB_SECRET": self._secret.hex()}
        if self.bind_to is not None:
            environment[BIND_TO] = self.bind_to
        script = self._script(client_script)
        reply = _run(command, "sbatch refuses the job", script, environment)
        self.job_id = reply.split(";")[0].strip().splitlines()[-1]
        self._logs = f"{logs}/slurm_{self.job_id}_{self.job_name}"

    def sbatch_options(self) -> list[str]:
        """Return the options of sbatch that say which nodes the job wants, and for how long.

        ``slurm_args`` come last, so that they override the others.
        """
        options = {
            "nodes": self.num_hosts,
            "time": self.time_limit,
            **{option.replace("_", "-"): getattr(self, option) for option in _OPTIONS},
        }
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*words, *(["--exclusive"] if self.exclusive else []), *self.slurm_args]

    def _warning_seconds(self) -> int:
        """Return how many seconds before the time limit the hosts warn of it."""
        limit = limit_seconds(self.time_limit or "")
        return int(min(_WARNING_SECONDS, limit / 4 if limit else _WARNING_SECONDS))

    def _script(self, client_script: str | None) -> str:
        num = self.num_hosts
        # A Python without monarch gets a bundle.
        hosts = (
            f"srun --nodes={num} --ntasks={num} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 "
            f"--cpu-bind=none --export=ALL {self.python_exe} "
            + shlex.join(python_arguments("monarch.runtime.entry.slurm_task", self.monarch_port))
        )
        if client_script is None:
            return f"#!/bin/sh\nexec {hosts}\n"
        client = f"{self.python_exe} {shlex.quote(client_script)}"
        if " " in client_script and not os.path.isfile(client_script):
            client = shlex.join(shlex.split(client_script))  # Monarch allows a command here.
        return (
            f"#!/bin/sh\n{hosts} &\nMONARCH_BATCH_JOB=1 {client}\nstatus=$?\nkill $!\nwait\n"
            "exit $status\n"
        )

    def _gateway_login(self) -> GatewayLogin | None:
        """Return the login to a node by the user's own ssh, which has names, users and jump hosts.

        ``None`` if no gateway is needed.
        """
        if not (self.out_of_cluster or self.attach_to) or _own_job_id() or not self._hosts:
            return None
        name = self.attach_to or self._hosts[0].name
        command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", name]
        return GatewayLogin(name, command, "python3")

    def _place(self) -> list[PlacedHost]:
        nodes = wait_for_place(self._nodes_or_reason, self.job_start_timeout)
        if nodes != self._nodes or not self._hosts:
            self._hosts, self._nodes = self._hosts_on(nodes), nodes
        return self._hosts

    def _nodes_or_reason(self) -> tuple[str, str]:
        """Return the job's nodes, and why it waits; "" if it runs. Raises ``JobError`` if it never
        will."""
        status = self._look()
        if status.state == "RUNNING":
            return status.nodes, ""
        if not status.is_live:
            raise JobError(self._why_over_now(status))
        if status.reason in _HOPELESS:
            raise JobError(f"Slurm would never run job {self.job_id}: {status.reason}")
        return "", f"Slurm job {self.job_id} is {status.state} ({status.reason})"

    def _hosts_on(self, nodes: str) -> list[PlacedHost]:
        names = _run(["scontrol", "show", "hostnames", nodes], "scontrol fails").split()
        if len(names) != self.num_hosts:
            raise JobError(
                f"Slurm job {self.job_id} has {len(names)} nodes ({nodes}), not {self.num_hosts}"
            )
        try:
            addresses = node_addresses(nodes)
        except OSError as error:
            raise JobError(str(error)) from None
        names = in_places([host.name for host in self._hosts], names)
        return [
            PlacedHost(mesh, name, f"tcp://{addresses[name]}:{self.monarch_port}")
            for mesh, name in zip(self._slots(), names, strict=True)
        ]

    def _look(self) -> _JobStatus:
        """Return the job's state from squeue, which is asked again for a while if Slurm does not
        answer."""
        deadline = time.monotonic() + _UNANSWERED_SECONDS
        command = ["squeue", "-h", "-t", "all", "-j", self.job_id, "-o", "%T|%N|%r"]
        while True:
            try:
                lines = _run(command, "squeue fails").strip().splitlines()
                return _JobStatus(*lines[0].split("|", 2)) if lines else _JobStatus("")
            except JobError as error:
                if "Invalid job id" in str(error):
                    return _JobStatus("")
                if "ontroller" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(LONGEST_LOOK_SECONDS)

    def _title(self) -> str:
        return f"Slurm job {self.job_id}"

    def _why_over(self) -> str:
        return self._why_over_now(self._look())

    def _why_over_now(self, status: _JobStatus) -> str:
        reason = f" ({status.reason})" if status.reason not in ("", "None") else ""
        over = f"is {status.state}{reason}" if status.state else "has ended: Slurm knows it no more"
        return f"Slurm job {self.job_id} {over}{self._last_words()}"

    def _last_words(self) -> str:
        """Return the last lines of the job's output files, as far as this machine sees them."""
        text = ""
        for path in sorted(glob.glob(f"{glob.escape(self._logs)}.*")) if self._logs else ():
            with open(path, encoding="utf-8", errors="replace") as file:
                tail = "".join(file.readlines()[-_TAIL_LINES:]).rstrip()
            text += f"\nthe last lines of {path}:\n{tail}" if tail else ""
        return text

    def _is_kept(self) -> bool:
        return bool(self.job_id) and self._look().is_live

    def _kill(self) -> None:
        """Call scancel, and wait until Slurm says that the job has ended."""
        self._forget_links()
        job_id = self.job_id
        if job_id and job_id != _own_job_id():
            _run(["scancel", job_id], "scancel refuses")
            deadline = time.monotonic() + _GONE_SECONDS
            while (status := self._look()).is_live or status.state in ("COMPLETING", "STAGE_OUT"):
                if time.monotonic() > deadline:
                    raise JobError(
                        f"Slurm job {job_id} is still {status.state} {_GONE_SECONDS:.0f} s after "
                        f"scancel; try again, or `scancel --signal=KILL {job_id}`"
                    )
                time.sleep(SHORTEST_LOOK_SECONDS)
        self._hosts = []
        self.job_id = self._nodes = ""

    def _placement(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "_logs": self._logs, "_nodes": self._nodes}


def in_places(old: Sequence[str], current: Sequence[str]) -> list[str]:
    """Return the ``current`` nodes of a job in the places that they had in ``old``.

    A new node takes the place of a lost one. If the numbers differ, the order is unchanged.
    """
    if len(old) != len(current):
        return list(current)
    new = iter([name for name in current if name not in old])
    return [name if name in current else next(new) for name in old]


def _ip_address(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(
            f"bind_to={text!r} is no IP address: give one of IPv4 or IPv6, without a port"
        ) from None


def _own_job_id() -> str:
    """Return the Slurm job whose client script this program is; "" if it is none."""
    return os.environ.get("SLURM_JOB_ID", "") if os.environ.get("MONARCH_BATCH_JOB") else ""


def _run(
    command: Sequence[str],
    problem: str,
    script: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command of Slurm's and return its output.

    If it fails, raises ``JobError`` with ``problem``, and what the command printed.
    """
    try:
        result = subprocess.run(
            command,
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
    except OSError as error:
        raise JobError(
            f"cannot run `{command[0]}`: {error.strerror or error}. A job of kind slurm needs "
            "Slurm's commands on the path, as on a login node"
        ) from None
    if result.returncode != 0:
        reason = (result.stderr or result.stdout).strip() or f"status {result.returncode}"
        raise JobError(f"{problem}: {reason}")
    return result.stdout
