"""Older functions for hosts of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch.actor import (
    ChannelTransport,
    HostMesh,
    ProcMesh,
    default_bootstrap_cmd,
    hosts_from_config,
    this_host,
)
from monarch.actor.spawn_hooks import listeners, spawned
from monarch.errors import MonarchError
from monarch.mesh import Extent
from monarch.net.identifiers import new_uid
from monarch.tools.network import free_port


def create_local_host_mesh(
    extent: Extent | None = None, env: dict[str, str] | None = None
) -> HostMesh:
    """Return hosts of that shape, each a process of this machine; without a shape this host
    alone."""
    if env:
        raise NotImplementedError(
            "create_local_host_mesh(env=...) is not there: give env to spawn_procs, or use "
            "monarch.job.ProcessJob(meshes, env)"
        )
    if extent is None or extent.nelements == 1:
        return this_host()
    flat = hosts_from_config(f"local-{new_uid()}", extent.nelements)
    *labels, last = extent.labels
    sizes = {label: extent[label] for label in labels}
    if not labels:
        return flat.rename(hosts=last) if last != "hosts" else flat
    return flat.split(hosts=(*labels, last), **sizes)


def fake_in_process_host(*_: Any) -> HostMesh:
    """Return this host itself: its procs are real processes, so tests see what users will."""
    return this_host()


def host_mesh_from_alloc(name: str, extent: Extent, allocator: Any, constraints: Any) -> HostMesh:
    """Return the hosts that an allocator allocates for ``extent``."""
    return HostMesh.allocate_nonblocking(name, extent, allocator, constraints)


def _get_bootstrap_args() -> tuple[str, list[str], dict[str, str | None]]:
    """Return the program, arguments and environment with which a proc is started."""
    command = default_bootstrap_cmd()
    return command.program, command.args, command.env


def _local_device_count() -> int:
    """Return how many GPUs this machine has, or 1 if it has none, as Monarch does."""
    try:
        import torch
    except ImportError:
        return 1
    return torch.cuda.device_count() or 1


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Call ``callback`` with each mesh of procs that this process spawns from now on."""
    listeners.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Stop calling ``callback``. Raises ``ValueError`` if it was not registered."""
    listeners.remove(callback)


def get_active_proc_meshes() -> list[ProcMesh]:
    """Return the meshes of procs that this process has spawned, still refers to, and has not
    stopped."""
    return [mesh for mesh in spawned if not mesh._is_stopped]


class ChannelAddr:
    """Makes addresses to listen at."""

    @staticmethod
    def any(transport: ChannelTransport) -> str:
        """Return an address that is free now."""
        if transport is ChannelTransport.Unix:
            return f"ipc://@monarch-{new_uid()}"
        if transport is ChannelTransport.TcpWithLocalhost:
            return f"tcp://127.0.0.1:{free_port()}"
        raise MonarchError(f"there is no address of any kind for {transport}: give an explicit one")


def reload_config_from_env() -> None:
    """Do nothing: settings are read from the environment when they are first used."""
