"""Jobs on machines that SkyPilot gets, from whichever cloud has them, as one cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.errors import JobError
from monarch.job.kinds.cloud import call_library, command_of_host, import_library
from monarch.job.kinds.remote import job_secret
from monarch.job.kinds.scheduled import PlacedHost, ScheduledJob
from monarch.net.identifiers import new_uid

_PORT = 22222
# This machine's own address, among all addresses, which SkyPilot lists by rank.
_OWN_ADDRESS = '$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")'


class SkyPilotJob(ScheduledJob):
    """``SkyPilotJob({"trainers": 2}, resources={"accelerators": "H100:8"})``: all meshes are one
    SkyPilot cluster, with one machine for each host.

    ``resources`` is a ``sky.Resources``, or its arguments. ``cluster_name`` is by default a name of
    its own. With ``idle_minutes_to_autostop`` SkyPilot ends it when it is idle: takes it down, or
    with ``down_on_autostop=False`` stops it. ``setup_commands`` run on each machine first, and
    ``workdir`` is brought there. The program must run where the machines' internal addresses can be
    reached.
    """

    kind = "skypilot"
    _KEPT = (
        "resources", "cluster_name", "monarch_port", "idle_minutes_to_autostop",
        "down_on_autostop", "python_exe", "setup_commands", "workdir",
    )  # fmt: skip

    def __init__(
        self,
        meshes: Mapping[str, int],
        resources: Any = None,
        cluster_name: str | None = None,
        monarch_port: int = _PORT,
        idle_minutes_to_autostop: int | None = None,
        down_on_autostop: bool = True,
        python_exe: str = "python",
        setup_commands: str | None = None,
        workdir: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(meshes, env, preload)
        if resources is not None and not isinstance(resources, Mapping):
            resources = resources.to_yaml_config()
        self.resources = dict(resources or {})
        self.cluster_name = cluster_name
        self.monarch_port = monarch_port
        self.idle_minutes_to_autostop = idle_minutes_to_autostop
        self.down_on_autostop = down_on_autostop
        self.python_exe = python_exe
        self.setup_commands = setup_commands
        self.workdir = workdir
        self._cluster = ""
        self._addresses: list[str] = []

    def _create(self, client_script: str | None) -> None:
        self._refuse_script(client_script)
        if not self._meshes:
            raise JobError("the job has no meshes")
        sky = skypilot_sdk()
        self._secret = job_secret()
        self._cluster = self.cluster_name or f"monarch-{new_uid()[:6]}"
        task = sky.Task(
            name="monarch",
            setup=self.setup_commands,
            workdir=self.workdir,
            run=command_of_host(self.python_exe, _OWN_ADDRESS),
            num_nodes=self.num_hosts,
            envs={**self.env, "MONARCH_PORT": str(self.monarch_port)},
            secrets={"MONARCH_JOB_SECRET": self._secret.hex()},
        )
        task.set_resources(sky.Resources.from_yaml_config(self.resources))
        options = {
            "cluster_name": self._cluster,
            "idle_minutes_to_autostop": self.idle_minutes_to_autostop,
            "down": self.idle_minutes_to_autostop is not None and self.down_on_autostop,
        }
        _, handle = call_library(
            lambda: sky.get(sky.launch(task, **options)), f"SkyPilot cannot launch {self._cluster}"
        )
        self._addresses = _internal(handle)

    def _record(self) -> Any:
        """Return SkyPilot's record of the cluster; ``None`` if it knows none."""
        sky = skypilot_sdk()
        records = call_library(
            lambda: sky.get(sky.status([self._cluster], refresh=sky.StatusRefreshMode.AUTO)),
            "SkyPilot does not answer",
        )
        return records[0] if records else None

    def _place(self) -> list[PlacedHost]:
        record = self._record()
        state = "" if record is None else _state_of(record)
        if state != "UP":
            raise JobError(f"{self._title()} is {state or 'gone'}")
        self._addresses = _internal(record["handle"]) or self._addresses
        if len(self._addresses) != self.num_hosts:
            raise JobError(
                f"{self._title()} has {len(self._addresses)} machines, not {self.num_hosts}"
            )
        hosts = zip(self._slots(), self._addresses, strict=True)
        return [
            PlacedHost(mesh, f"{mesh}{rank}", f"tcp://{address}:{self.monarch_port}")
            for rank, (mesh, address) in enumerate(hosts)
        ]

    def _title(self) -> str:
        return f"SkyPilot's cluster {self._cluster}"

    def _is_kept(self) -> bool:
        if not self._cluster:
            return False
        record = self._record()
        return record is not None and _state_of(record) == "UP"

    def _kill(self) -> None:
        """Take the cluster down. Raises ``JobError`` if SkyPilot still has it."""
        self._forget_links()
        if self._cluster:
            sky = skypilot_sdk()
            if self._record() is not None:
                call_library(
                    lambda: sky.get(sky.down(self._cluster)),
                    f"SkyPilot cannot take {self._cluster} down",
                )
            if (record := self._record()) is not None:
                raise JobError(
                    f"{self._title()} is still {_state_of(record)}: `sky down {self._cluster}`"
                )
        self._hosts, self._addresses = [], []
        self._cluster = ""

    def _placement(self) -> dict[str, Any]:
        return {"_cluster": self._cluster, "_addresses": self._addresses}


def _internal(handle: Any) -> list[str]:
    """Return the addresses at which the machines reach each other, by rank."""
    pairs = getattr(handle, "stable_internal_external_ips", None) or ()
    return [str(internal) for internal, _ in pairs]


def _state_of(record: Any) -> str:
    status = record["status"]
    return str(getattr(status, "value", status))


def skypilot_sdk() -> Any:
    """Import the library `sky`. Raises ``JobError`` if it is not installed."""
    return import_library("sky", "skypilot", "SkyPilot")
