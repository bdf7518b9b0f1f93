"""The older way to get procs: an allocator makes the procs of a specification.

A thin layer over the usual host agents; ``monarch.job`` and ``attach_to_workers`` are the current
ways.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any

from monarch.actor.attach import attach_to_workers
from monarch.actor.future import Future, value_of_outcome
from monarch.actor.host_mesh import HostMesh, this_host
from monarch.actor.proc_mesh import ProcMesh
from monarch.runtime.promise import Promise

ALLOC_LABEL_PROC_MESH_NAME = "procmesh.monarch.meta.com/name"

_HOSTS = "hosts"


class AllocConstraints:
    """Labels that hosts must have; only initializers of remote hosts use them."""

    def __init__(self, match_labels: Mapping[str, str] | None = None) -> None:
        self.match_labels = dict(match_labels or {})


class AllocSpec:
    """The number of procs: ``AllocSpec(AllocConstraints(), hosts=2, gpus=8)``."""

    def __init__(self, constraints: AllocConstraints, **sizes: int) -> None:
        self.constraints = constraints
        self.extent = dict(sizes)


class Alloc:
    """An allocation, from which ``ProcMesh.from_alloc`` makes procs. It can be awaited."""

    def __init__(self, hosts: HostMesh, per_host: dict[str, int]) -> None:
        self._hosts = hosts
        self._per_host = per_host

    @property
    def initialized(self) -> Future[bool]:
        """Return a future that is True once every host has accepted us, and raises a host's
        refusal."""
        return self._hosts.initialized

    def _spawn(self, setup: Callable[[], Any] | None) -> ProcMesh:
        return self._hosts.spawn_procs(self._per_host, setup)

    def __await__(self) -> Generator[Any, None, Alloc]:
        yield from self.initialized.__await__()
        return self


class _Allocator:
    def allocate(self, spec: AllocSpec) -> Alloc:
        raise NotImplementedError

    def _host_mesh(
        self, extent: Mapping[str, int], constraints: AllocConstraints | None
    ) -> HostMesh:
        spec = AllocSpec(constraints or AllocConstraints(), **dict(extent))
        return self.allocate(spec)._hosts


class LocalAllocator(_Allocator):
    """Allocates on this machine."""

    def allocate(self, spec: AllocSpec) -> Alloc:
        return Alloc(this_host(), spec.extent)


class ProcessAllocator(LocalAllocator):
    """Allocates on this machine.

    Procs are started with monarch's own program; ``program`` and ``args`` are ignored.
    """

    def __init__(
        self,
        program: str = "",
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.env = dict(env or {})


class RemoteAllocInitializer:
    """The base of classes that know where host agents listen. Programs define their own."""

    async def initialize_alloc(self, match_labels: dict[str, str]) -> list[str]:
        """Return the addresses of the hosts that have these labels."""
        raise NotImplementedError


class TorchXRemoteAllocInitializer(RemoteAllocInitializer):
    """A stand-in for the class that asks TorchX for a job's hosts, which is not supported."""

    def __init__(self, server_handle: str, **_: Any) -> None:
        raise NotImplementedError(
            f"the hosts of {server_handle!r} cannot be asked for: this release does not drive "
            "TorchX. Give their addresses to StaticRemoteAllocInitializer, or to attach_to_workers"
        )


class StaticRemoteAllocInitializer(RemoteAllocInitializer):
    """Returns host agents at fixed addresses."""

    def __init__(self, *addrs: str) -> None:
        self.addrs = list(addrs)

    async def initialize_alloc(self, match_labels: dict[str, str]) -> list[str]:
        return list(self.addrs)


class RemoteAllocator(_Allocator):
    """Allocates on the hosts whose agents' addresses ``initializer`` returns."""

    def __init__(self, world_id: str = "", initializer: Any = None, **_: Any) -> None:
        self.world_id = world_id
        self._initializer = initializer

    def allocate(self, spec: AllocSpec) -> Alloc:
        """Attach to as many hosts as ``spec`` asks for, in the order of their addresses.

        Raises ``ValueError`` if there are fewer.
        """
        per_host = dict(spec.extent)
        wanted = per_host.pop(_HOSTS, 1)
        addresses = _run(self._initializer.initialize_alloc(spec.constraints.match_labels))
        if len(addresses) < wanted:
            raise ValueError(
                f"{wanted} hosts were asked for, and {len(addresses)} are known: {addresses}"
            )
        # Older addresses have the form tcp!host:port.
        workers = [address.replace("!", "://", 1) for address in addresses[:wanted]]
        return Alloc(attach_to_workers(workers=workers), per_host)


def _run(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Return the result of a coroutine, whether or not a loop runs on this thread."""
    done: Promise[tuple[list[str], BaseException | None]] = Promise()

    def run() -> None:
        try:
            done.set((asyncio.run(work), None))
        except BaseException as error:
            done.set(([], error))

    threading.Thread(target=run, daemon=True).start()
    done.wait()
    return value_of_outcome(done.value)
