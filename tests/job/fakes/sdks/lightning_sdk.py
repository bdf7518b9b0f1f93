"""Stands in for ``lightning_sdk``: as much of it as a job asks for, with its signatures."""

from __future__ import annotations

import types
from typing import Any

from tests.job.fakes import machines

Machine = types.SimpleNamespace(CPU="cpu-4")


class Studio:
    """The one that this runs in."""


class MMT:
    def __init__(self, name: str, teamspace: Any = None, org: Any = None, user: Any = None) -> None:
        if machines.noted(name) is None:
            raise ValueError(f"there is no job {name}")
        self.name = name

    @classmethod
    def run(
        cls, name: str, num_machines: int, machine: Any, cloud: Any = None,
        command: str | None = None, studio: Any = None, image: str | None = None,
        teamspace: Any = None, org: Any = None, user: Any = None,
        env: dict[str, str] | None = None, interruptible: bool = False,
        max_runtime: int | None = None, keep_minutes: int | None = None,
    ) -> MMT:  # fmt: skip
        if told := machines.refusal():
            raise RuntimeError(told)
        made = machines.start(command or "", num_machines, env or {})
        machines.note(name, {"status": "Running", "machines": made})
        return cls(name)

    @property
    def _noted(self) -> dict[str, Any]:
        return machines.noted(self.name) or {"status": "Stopped", "machines": []}

    @property
    def status(self) -> Any:
        return types.SimpleNamespace(value=self._noted["status"])

    @property
    def machines(self) -> tuple[Any, ...]:
        return tuple(
            types.SimpleNamespace(
                private_ip_address=one["address"],
                status="Running" if machines.is_up(one) else "Failed",
            )
            for one in self._noted["machines"]
        )

    @property
    def logs(self) -> str:
        first = self._noted["machines"][0]["address"]
        return (machines.folder() / f"{first}.log").read_text()

    def stop(self) -> None:
        noted = self._noted
        machines.stop(noted["machines"])
        machines.note(self.name, noted | {"status": "Stopped"})
