"""Spellings of older releases, over the current ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch.actor.host_mesh import this_host
from monarch.actor.proc_mesh import ProcMesh

__all__ = ["local_proc_mesh", "proc_mesh"]


def proc_mesh(
    *,
    gpus: int = 1,
    hosts: int = 1,
    env: dict[str, str] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """``hosts`` times ``gpus`` procs on this machine: ``this_host().spawn_procs(...)``."""
    return this_host().spawn_procs({"hosts": hosts, "gpus": gpus}, setup, env=env)


local_proc_mesh = proc_mesh
