"""Stands in for SkyPilot's ``sky``: as much of it as a job asks for, with its signatures."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from tests.job.fakes import machines

StatusRefreshMode = types.SimpleNamespace(AUTO="auto")
_requests: dict[str, Callable[[], Any]] = {}


class Resources:
    @classmethod
    def from_yaml_config(cls, config: dict[str, Any] | None) -> Any:
        return config


class Task:
    def __init__(
        self, name: str | None = None, *, setup: Any = None, run: Any = None, envs: Any = None,
        secrets: Any = None, workdir: Any = None, num_nodes: int | None = None,
    ) -> None:  # fmt: skip
        self.run, self.env, self.num_nodes = run, {**(envs or {}), **(secrets or {})}, num_nodes

    def set_resources(self, resources: Any) -> None:
        self.resources = resources


def launch(
    task: Task, cluster_name: str | None = None, retry_until_up: bool = False,
    idle_minutes_to_autostop: int | None = None, dryrun: bool = False, down: bool = False,
) -> str:  # fmt: skip
    def work() -> Any:
        if told := machines.refusal():
            raise RuntimeError(told)
        made = machines.start(task.run, task.num_nodes or 1, task.env)
        machines.note(str(cluster_name), {"machines": made})
        return 1, _handle(made)

    return _request(work)


def status(cluster_names: list[str] | None = None, refresh: Any = None) -> str:
    def work() -> list[dict[str, Any]]:
        found = ((name, machines.noted(name)) for name in cluster_names or ())
        return [
            {"name": name, "status": "UP", "handle": _handle(noted["machines"])}
            for name, noted in found if noted is not None
        ]  # fmt: skip

    return _request(work)


def down(cluster_name: str) -> str:
    def work() -> None:
        noted = machines.noted(cluster_name)
        assert noted is not None
        machines.stop(noted["machines"])
        machines.note(cluster_name, None)

    return _request(work)


def get(request_id: str) -> Any:
    return _requests.pop(request_id)()


def _request(work: Callable[[], Any]) -> str:
    name = f"request-{len(_requests)}"
    _requests[name] = work
    return name


def _handle(made: list[dict[str, Any]]) -> Any:
    pairs = [(one["address"], "203.0.113.1") for one in made]
    return types.SimpleNamespace(stable_internal_external_ips=pairs)
