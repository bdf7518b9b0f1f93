"""Jobs on machines of Lightning's Multi-Machine Training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.errors import JobError
from monarch.job.kinds.cloud import call_library, command_of_host, import_library
from monarch.job.kinds.remote import job_secret
from monarch.job.kinds.scheduled import LONGEST_LOOK_SECONDS, PlacedHost, ScheduledJob
from monarch.net.identifiers import new_uid

_PORT = 26600
_GONE_SECONDS = 300.0
_OVER = {"Stopped", "Completed", "Failed"}


class LightningJob(ScheduledJob):
    """``LightningJob(2, "H100_X_8")``: one mesh, ``mesh``, of that many machines.

    ``machine`` is one of ``lightning_sdk.Machine``, or its name. ``studio`` is the Studio whose
    environment the machines get, by default the one that this runs in; ``image`` is an image
    instead. ``options`` are more arguments of ``MMT.run``, such as ``teamspace``, ``org``,
    ``user``, ``interruptible`` and ``max_runtime``. Getting the machines may take ``timeout``
    seconds. The program must run where the machines' private addresses can be reached, as in a
    Studio.
    """

    kind = "lightning"
    _KEPT = (
        "num_nodes", "machine", "name", "mesh", "studio", "image", "options", "python_exe",
        "monarch_port", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        num_nodes: int,
        machine: Any,
        name: str = "monarch",
        *,
        mesh: str = "hosts",
        studio: str | None = None,
        image: str | None = None,
        options: Mapping[str, Any] | None = None,
        python_exe: str = "python",
        monarch_port: int = _PORT,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__({mesh: num_nodes}, env, preload)
        self.num_nodes = num_nodes
        self.machine = str(getattr(machine, "name", machine))
        self.name = name
        self.mesh = mesh
        self.studio = studio
        self.image = image
        self.options = dict(options or {})
        self.python_exe = python_exe
        self.monarch_port = monarch_port
        self.timeout = timeout
        self._job_name = ""

    def _create(self, client_script: str | None) -> None:
        self._refuse_script(client_script)
        sdk = lightning_sdk()
        self._secret = job_secret()
        name = f"{self.name}-{new_uid()[:6]}"
        chosen = {"studio": self.studio, "image": self.image}
        if self.studio is None and self.image is None:
            chosen["studio"] = sdk.Studio()  # the Studio that this program runs in
        # All users who may see the job's settings in the teamspace may see its secret there.
        env = {**self.env, "MONARCH_JOB_SECRET": self._secret.hex()}
        env["MONARCH_PORT"] = str(self.monarch_port)
        call_library(
            lambda: sdk.MMT.run(
                name=name,
                num_machines=self.num_nodes,
                machine=getattr(sdk.Machine, self.machine, self.machine),
                command=command_of_host(self.python_exe),
                env=env,
                **{key: value for key, value in chosen.items() if value is not None},
                **self.options,
            ),
            "Lightning refuses the job",
        )
        self._job_name = name

    def _job(self) -> Any:
        """Return the job's current state at Lightning."""
        sdk = lightning_sdk()
        names = ("teamspace", "org", "user")
        options = {name: self.options[name] for name in names if name in self.options}
        return call_library(lambda: sdk.MMT(self._job_name, **options), "Lightning does not answer")

    def _place(self) -> list[PlacedHost]:
        began, job = time.monotonic(), self._job()
        while True:
            machines, status = job.machines, _status_of(job)
            states = [_status_of(machine) for machine in machines]
            over = [f"machine {n} is {state}" for n, state in enumerate(states) if state in _OVER]
            if status in _OVER or over:
                reason = "; ".join(sorted(over)) or f"it is {status}"
                raise JobError(f"{self._title()}: {reason}{self._logs_of(job)}")
            urls = [f"tcp://{x.private_ip_address}:{self.monarch_port}" for x in machines]
            if len(urls) == self.num_nodes and all(x.private_ip_address for x in machines):
                names = [f"{self.mesh}{rank}" for rank in range(self.num_nodes)]
                return [PlacedHost(self.mesh, *host) for host in zip(names, urls, strict=True)]
            if self.timeout is not None and time.monotonic() - began > self.timeout:
                raise JobError(
                    f"{self._title()} is {status} after {self.timeout:.0f} s: it is given up"
                )
            time.sleep(LONGEST_LOOK_SECONDS)

    def _logs_of(self, job: Any) -> str:
        try:
            return f"; the last of its log:\n{str(job.logs)[-2000:]}"
        except Exception:
            return ""  # The error is reported also without it.

    def _title(self) -> str:
        return f"Lightning job {self._job_name}"

    def _is_kept(self) -> bool:
        return bool(self._job_name) and _status_of(self._job()) not in {*_OVER, "Stopping"}

    def _kill(self) -> None:
        """Stop the job, and wait until Lightning says that it has ended."""
        self._forget_links()
        if self._job_name:
            job = self._job()
            if _status_of(job) not in _OVER:
                call_library(job.stop, "Lightning does not stop the job")
            deadline = time.monotonic() + _GONE_SECONDS
            while (status := _status_of(job)) not in _OVER:
                if time.monotonic() > deadline:
                    raise JobError(
                        f"{self._title()} is still {status} {_GONE_SECONDS:.0f} s after it was "
                        f"stopped: look at it in the teamspace, or try again"
                    )
                time.sleep(LONGEST_LOOK_SECONDS)
        self._hosts = []
        self._job_name = ""

    def _wanted(self) -> dict[str, Any]:
        return {key: value for key, value in super()._wanted().items() if key != "meshes"}

    def _placement(self) -> dict[str, Any]:
        return {"_job_name": self._job_name}


def _status_of(job: Any) -> str:
    return str(getattr(job.status, "value", job.status))


def lightning_sdk() -> Any:
    """Import the library `lightning_sdk`. Raises ``JobError`` if it is not installed."""
    return import_library("lightning_sdk", "lightning", "Lightning's SDK")
