"""Actors, and the meshes of hosts, procs and actors they live in.

What to open:

    actor                        the base class of actors
    instance, context            the running actor, and the rank that its message was sent to
    endpoint                     `@endpoint`, and the ways to call one
    arguments                    the check of a call's arguments, at the caller
    replies, gather              answers to calls, and how those of many ranks become one
    future                       `Future`, for threads and for asyncio
    returns_future               `returns_future`: coroutine functions for callers with and without
                                 a loop
    channel                      ports and receivers
    lending                      arguments that are lent to their receivers rather than pickled
    actor_mesh                   `ActorMesh`: actors of a class, called, sliced, stopped
    mesh_ref                     a reference to actors: their class, procs and shape
    proc_mesh, host_mesh, host   `ProcMesh`; `HostMesh`, machines that procs are spawned on; one of
                                 these
    starting_mesh                meshes that are usable before they are up
    syncable, pushing            `sync_workspace`: what it takes and gives; its thread
    upgrade                      `actors.upgrade(NewClass)`; with `monarch/wire/by_value.py`
    spawning                     what a program may give to `spawn_procs`
    bootstrap_command            the program that procs are started with
    spawn_hooks                  listeners at every spawn, and stand-ins for actors in tests
    controllers                  actors of which a program has one, found by name
    attach                       how a client attaches to host agents, and leaves them
    transport                    how processes reach each other, in upstream's words
    host_warnings                warnings that a host is about to end
    env_report                   environment variables of the procs of a mesh
    logs                         `logging_option`: how output reaches the client
    config                       `monarch.actor.config`
    ids                          names of actors and processes
    mesh_html                    a mesh in a notebook

Which CPUs a proc gets: `monarch/runtime/procs/binding.py`.
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
    """Handle a failure that no supervisor handled: end the program with status 1.

    Assign another function to this name to change that; if it returns, the program continues.
    """
    sys.exit(1)


set_fault_hook_source(lambda: unhandled_fault_hook)
