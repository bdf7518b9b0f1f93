from __future__ import annotations

import json
import os
from typing import Any

from tests.job.fakes import machines

from . import scheduling_strategies

__all__ = ["scheduling_strategies"]


class _Group:
    def __init__(self, name: str, fits: bool) -> None:
        self.name, self._fits = name, fits

    def wait(self, timeout_seconds: float = 30) -> bool:
        return self._fits


def placement_group(
    bundles: list[dict[str, float]], strategy: str = "PACK", name: str = "",
    lifetime: str | None = None,
) -> _Group:  # fmt: skip
    from .. import NUM_NODES

    assert strategy == "STRICT_SPREAD"
    fits = len(bundles) <= NUM_NODES and all(one.get("GPU", 0) <= 4 for one in bundles)
    machines.note(f"group-{name}", {"name": name, "state": "CREATED" if fits else "PENDING"})
    return _Group(name, fits)


def get_placement_group(placement_group_name: str) -> _Group:
    if machines.noted(f"group-{placement_group_name}") is None:
        raise ValueError(f"Failed to look up placement group {placement_group_name}")
    return _Group(placement_group_name, True)


def remove_placement_group(placement_group: _Group) -> None:
    name = placement_group.name
    machines.note(f"group-{name}", {"name": name, "state": "REMOVED"})


def placement_group_table() -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in machines.folder().glob("group-*.json")]
    return {one["name"]: one for one in found}


def list_named_actors(all_namespaces: bool = False) -> list[dict[str, str]]:
    found = (machines.folder() / "actors").glob("*")
    return [{"name": path.name, "namespace": "monarch"} for path in found]


def get_node_ip_address() -> str:
    return os.environ["FAKE_RAY_ADDRESS"]
