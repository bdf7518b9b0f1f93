"""Actors, and the meshes of hosts, procs and actors they live in.

What to open, by what is to be changed:

- what a program may give to `spawn_procs`: `host_mesh.py`, `spawning.py`,
  `monarch/runtime/procs/binding.py`
- a way to call endpoints: `endpoint.py`
- who is told that a host is about to end: `host_warnings.py`
- what `sync_workspace` takes and gives: `syncable.py`, `pushing.py`
- `actors.upgrade(NewClass)`: `upgrade.py`, `monarch/wire/by_value.py`
"""

from __future__ import annotations

import sys
from typing import Any

from monarch.actor import config
from monarch.actor.actor import Actor
from monarch.actor.actor_mesh import ActorMesh
from monarch.actor.attach import (
    attach,
    attach_to_workers,
    hosts_from_config,
    run_worker_loop_forever,
    run_worker_loop_until_shutdown,
    shutdown_context,
    start_worker_loop_forever,
)
from monarch.actor.bootstrap_command import BootstrapCommand, default_bootstrap_cmd
from monarch.actor.channel import Channel, PortReceiver, RankedPortReceiver
from monarch.actor.context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
from monarch.actor.controllers import debug_controller, get_or_spawn_controller
from monarch.actor.endpoint import (
    Endpoint,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    send,
)
from monarch.actor.future import Future
from monarch.actor.gather import Accumulator
from monarch.actor.host_mesh import HostMesh, local_proc_mesh, proc_mesh, this_host, this_proc
from monarch.actor.host_warnings import HostWarning
from monarch.actor.ids import ActorAddr, ProcId, Uid
from monarch.actor.instance import Instance
from monarch.actor.proc_mesh import ProcMesh
from monarch.actor.returns_future import returns_future
from monarch.actor.transport import enable_transport
from monarch.config import BindSpec, ChannelTransport
from monarch.errors import ActorError, MeshFailure, SupervisionError
from monarch.mesh import Extent, MeshTrait, Point, Region, Shape, Slice, ValueMesh
from monarch.runtime.ends.unhandled_faults import set_fault_hook_source
from monarch.runtime.port import Port
from monarch.runtime.telemetry import get_meter, span, traced

__all__ = [
    "Accumulator",
    "Actor",
    "ActorAddr",
    "ActorError",
    "ActorMesh",
    "BindSpec",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "HostWarning",
    "Instance",
    "MeshFailure",
    "MeshTrait",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "RankedPortReceiver",
    "Region",
    "Shape",
    "Slice",
    "SupervisionError",
    "Uid",
    "ValueMesh",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "debug_controller",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "hosts_from_config",
    "local_proc_mesh",
    "proc_mesh",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "span",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "traced",
    "unhandled_fault_hook",
]


def unhandled_fault_hook(failure: MeshFailure) -> Any:
    """Called with a failure that no supervisor handled. Assign another function to change it.

    This one ends the program with status 1; one that returns lets it go on.
    """
    sys.exit(1)


set_fault_hook_source(lambda: unhandled_fault_hook)
