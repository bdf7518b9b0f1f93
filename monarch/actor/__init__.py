"""Actors, and the meshes of hosts, procs and actors they live in."""

from __future__ import annotations

import sys
from typing import Any

from monarch.actor.accumulator import Accumulator
from monarch.actor.actor import Actor
from monarch.actor.actor_mesh import ActorMesh
from monarch.actor.attach import attach_to_workers, run_worker_loop_forever
from monarch.actor.channel import Channel, PortReceiver, RankedPortReceiver
from monarch.actor.context import (
    Context,
    Instance,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
from monarch.actor.endpoint import (
    Endpoint,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    send,
)
from monarch.actor.future import Future
from monarch.actor.host_mesh import HostMesh, this_host, this_proc
from monarch.actor.older import local_proc_mesh, proc_mesh
from monarch.actor.proc_mesh import ProcMesh
from monarch.actor.shutdown import shutdown_context
from monarch.errors import ActorError, MeshFailure, SupervisionError
from monarch.mesh import Extent, Point, Region, Shape, Slice, ValueMesh
from monarch.runtime import client_agent
from monarch.runtime.port import Port
from monarch.wire.address import ActorAddress

__all__ = [
    "Accumulator",
    "Actor",
    "ActorAddress",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "Instance",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RankedPortReceiver",
    "Region",
    "Shape",
    "Slice",
    "SupervisionError",
    "ValueMesh",
    "as_endpoint",
    "attach_to_workers",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "local_proc_mesh",
    "proc_mesh",
    "run_worker_loop_forever",
    "send",
    "shutdown_context",
    "this_host",
    "this_proc",
    "unhandled_fault_hook",
]


def unhandled_fault_hook(failure: MeshFailure) -> Any:
    """Called with a failure that nobody handled. Assign another function to change it.

    This one ends the program with status 1; one that returns lets it go on.
    """
    sys.exit(1)


client_agent.set_fault_hook_source(lambda: unhandled_fault_hook)
