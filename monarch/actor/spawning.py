"""Turns the user's arguments of a spawn into orders for the host agents that make the procs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from monarch.actor.bootstrap_command import BootstrapCommand
from monarch.actor.future import promise_of
from monarch.actor.host import Host, link
from monarch.actor.proc_mesh import Ownership, ProcMesh, current_owner, stop_procs
from monarch.config import inherited_config, settings
from monarch.core.fanout import Tree, proc_uid
from monarch.core.supervision import ROOT
from monarch.mesh import Extent, Point, Shape, Slice
from monarch.net.identifiers import new_uid
from monarch.runtime import process
from monarch.runtime.code_states import UNBORN, CodeState
from monarch.runtime.procs.binding import check_binding
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Command, ProcDown, ProcSpec, SpawnProcs


class SpawnPlan(NamedTuple):
    """The order to make procs, in a shape, with the same number on each host."""

    shape: Shape
    specs: list[ProcSpec]
    num_per_host: int
    setup: bytes

    @classmethod
    def of(
        cls,
        hosts: Shape,
        per_host: dict[str, int],
        bootstrap: Callable[[], Any] | None,
        proc_bind: Sequence[dict[str, str]] | None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None,
        env: dict[str, str],
    ) -> SpawnPlan:
        """Check the arguments of a spawn and make a plan. Raises ``ValueError`` and ``TypeError``
        for arguments that do not fit.
        """
        shared = sorted(set(per_host) & set(hosts.labels))
        if shared:
            raise ValueError(
                f"per_host labels {list(per_host)} overlap with host labels {list(hosts.labels)}"
            )
        bad = {label: size for label, size in per_host.items() if size < 1}
        if bad:
            raise ValueError(f"per_host sizes must be at least 1: {bad}")
        _warn_of_multiplied(hosts, per_host)
        num_per_host = Extent(list(per_host), list(per_host.values())).nelements
        if bootstrap is not None and not callable(bootstrap):
            raise TypeError(
                f"bootstrap must be a function, not {bootstrap!r}; a name goes into name="
            )
        if proc_bind is not None and len(proc_bind) != num_per_host:
            raise ValueError(
                f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({num_per_host})"
            )
        for bind in proc_bind or ():
            check_binding(bind)
        labels = [*hosts.labels, *per_host]
        sizes = [*hosts.ndslice.sizes, *per_host.values()]
        shape = Shape(labels, Slice.new_row_major(sizes))
        extent = Extent(labels, sizes)
        specs = [
            ProcSpec(new_uid(), rank, env, dict(bind), _command(bootstrap_command, rank, extent))
            for rank, bind in enumerate([*(proc_bind or [{}] * num_per_host)] * len(hosts.ndslice))
        ]
        return cls(shape, specs, num_per_host, b"" if bootstrap is None else _pickled(bootstrap))


def spawn(
    hosts: Sequence[Host],
    plan: SpawnPlan,
    name: str,
    preload: tuple[str, ...],
    command: Command | None,
    reference: Any,
) -> ProcMesh:
    """Order the procs, and make their owner responsible for them. Does not wait.

    ``reference`` refers to the mesh of these hosts.
    """
    shape, specs, num_per_host, setup = plan
    agent = process.current()
    node = agent.node
    uid = new_uid()
    owner, _ = current_owner()
    tree = _tree(uid, hosts, specs[:num_per_host], specs)
    if tree is not None:
        specs = [msgspec.structs.replace(spec, uid=proc_uid(uid, spec.rank)) for spec in specs]

    state = agent.workspaces.wanted(host.address.uid for host in hosts)
    born = UNBORN
    # An entry that is relative, as "" is, means this process's folder, wherever procs begin.
    path = tuple(os.fsencode(os.path.abspath(entry)) for entry in sys.path)

    def order(part: Sequence[ProcSpec]) -> SpawnProcs:
        return SpawnProcs(
            mesh=uid,
            name=name,
            owner=node.address,
            owner_actor=owner,
            labels=tuple(shape.labels),
            sizes=tuple(shape.ndslice.sizes),
            procs=tuple(part),
            preload=preload,
            path=path,
            root=agent.root,
            command=command,
            is_quiet=tree is not None,
            config=inherited_config(),
            generation=born.generation,
            digest=born.digest,
            codes=agent.code_states.to_inherit(),
        )

    procs = [
        ProcAddress(spec.uid, (), host.address.machine, host.address.uid, host.address.urls)
        for spec, host in zip(
            specs, (host for host in hosts for _ in range(num_per_host)), strict=True
        )
    ]
    # First: a host may be lost at any moment from here on, and that is reported only once.
    agent.supervisor.owned(
        owner,
        uid,
        name,
        "proc",
        [proc.uid for proc in procs],
        lambda: promise_of(stop_procs(procs, "its owner has ended")),
        lambda rank: f"{name}{Point(rank, shape.extent)}" if shape.labels else name,
    )
    try:
        with agent.spawn_gate.passing():
            # Only here: a push may just have ended.
            born = CodeState(max(agent.gate.generation, state.generation), state.digest)
            for number, host in enumerate(hosts):
                link(agent, host)
                if tree is None:
                    part = slice(number * num_per_host, (number + 1) * num_per_host)
                    for proc in procs[part]:
                        node.address_book.expect(proc)
                    node.send(host.address, order(specs[part]), setup)
            if tree is not None:
                # Each host agent gives its procs their uids and ranks.
                route = node.trees.route(tree)
                route.send(tree.everybody, order(specs[:num_per_host]), setup)
            agent.own_procs(procs)
    except BaseException:
        agent.supervisor.stopped(uid)
        raise
    for host in hosts:
        failure = node.failure_of(host.address.uid)
        if failure is not None:
            # Earlier procs were reported as lost with the host; these came after that.
            why = f"its host is gone: {failure.reason}"
            late = [ProcDown(p.uid, why) for p in procs if p.host_uid == host.address.uid]
            node.peer_down.report_all(late, host.address.uid)
    mesh = ProcMesh(
        uid,
        name,
        shape,
        procs,
        owned=True,
        hosts=reference,
        num_per_host=num_per_host,
        tree=tree,
        born=born,
    )
    ownership = mesh._ownership  # Not the mesh, which the program may drop.
    if owner == ROOT:
        agent.collector.watch(
            mesh, uid, name, [proc.uid for proc in procs], lambda: _collect(ownership)
        )
    return mesh


def _collect(owned: Ownership) -> None:
    owned.is_stopped = True
    process.current().supervisor.stopped(owned.uid)
    stop_procs(owned.procs, "nothing refers to them any more")


def _tree(
    mesh: Uid, hosts: Sequence[Host], on_each: Sequence[ProcSpec], specs: Sequence[ProcSpec]
) -> Tree | None:
    """Return the tree that messages to a mesh on many hosts take; ``None`` for a mesh on few
    hosts.
    """
    addresses = tuple(host.address for host in hosts)
    # Behind a gateway, a message to two hosts would cross a slow link twice.
    fewest = settings().tree_min_hosts if process.current().node.gateway is None else 2
    if len(addresses) < fewest or len(set(addresses)) < len(addresses):
        return None
    if any(spec.command != on_each[i % len(on_each)].command for i, spec in enumerate(specs)):
        return None  # One order goes to all hosts.
    return Tree(mesh, addresses, len(on_each), settings().tree_degree)


def _command(
    command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None,
    rank: int,
    extent: Extent,
) -> Command | None:
    """Return the command of one proc of a mesh; ``None`` for the default command."""
    if callable(command):
        command = command(Point(rank, extent))
    return command._as_command() if command is not None else None


def _pickled(bootstrap: Callable[[], Any]) -> bytes:
    data, buffers = payload.dump(bootstrap)
    return msgspec.msgpack.encode([data, *buffers])


_MOST_GPUS = 8  # of common machines


def _warn_of_multiplied(hosts: Shape, per_host: dict[str, int]) -> None:
    """Warn if ``per_host`` seems to give the number of GPUs of all hosts together."""
    num_hosts = len(hosts.ndslice)
    for label in ("gpus", "gpu"):
        size = per_host.get(label, 0)
        if num_hosts > 1 and size > _MOST_GPUS and size % num_hosts == 0:
            warnings.warn(
                f"spawn_procs({per_host}) on {num_hosts} hosts makes {size * num_hosts} {label}: "
                f"the number is for each host. For {size} in all, give "
                f"{{{label!r}: {size // num_hosts}}}",
                stacklevel=4,
            )
