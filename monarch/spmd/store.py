"""A mesh of hosts from within a job that ``torchrun`` has started.

One rank of each machine starts a host agent there, and writes its address into the store that the
ranks share. Rank 0 becomes the client.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
from typing import Any, Protocol

from monarch.actor import HostMesh, attach_to_workers
from monarch.net.identifiers import new_uid
from monarch.runtime.hosts.agent_process import start_agent
from monarch.runtime.hosts.directory import new_directory, remove_directory

_workers: list[subprocess.Popen[bytes]] = []
_NETS = ("tcp", "metatls", "metatls-hostname")  # as Monarch knows them


class StoreLike(Protocol):
    """The part of ``torch.distributed.Store`` that is used: ``get`` waits until the key exists."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


def host_mesh_from_store(
    store: StoreLike | Any,
    *,
    monarch_port: int = 0,
    name: str = "monarch_worker",
    transport: str = "ipc",
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
) -> HostMesh | None:
    """Return the machines of this job as a mesh, on rank 0; ``None`` on all other ranks.

    Every rank must call it. Values that are not given are read from the environment that torchrun
    sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE). ``transport`` is "ipc", for one machine,
    or "tcp", which needs an explicit ``monarch_port`` and, for several machines, the same
    MONARCH_JOB_SECRET in the environment of all ranks. The agents end with the rank that started
    them. Raises ``RuntimeError`` for a variable that is missing, ``ValueError`` for sizes that do
    not fit, another transport, or a missing port.
    """
    urls = worker_urls_from_store(
        store,
        monarch_port=monarch_port,
        name=name,
        transport=transport,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
    )
    return None if urls is None else attach_to_workers(name=name, workers=urls)


def worker_urls_from_store(
    store: StoreLike | Any,
    *,
    monarch_port: int,
    name: str,
    transport: str,
    rank: int | None,
    local_rank: int | None,
    world_size: int | None,
    local_world_size: int | None,
) -> list[str] | None:
    """Return the URLs of the host agents of all machines, on rank 0; ``None`` on other ranks.

    The same as ``host_mesh_from_store``, but it does not attach to them.
    """
    rank = _given_or_env(rank, "RANK")
    local_rank = _given_or_env(local_rank, "LOCAL_RANK")
    world_size = _given_or_env(world_size, "WORLD_SIZE")
    local_world_size = _given_or_env(local_world_size, "LOCAL_WORLD_SIZE")
    if local_world_size < 1 or world_size % local_world_size:
        raise ValueError(
            f"WORLD_SIZE ({world_size}) is not divisible by LOCAL_WORLD_SIZE ({local_world_size}): "
            "every machine needs the same number of ranks"
        )
    if local_rank == 0:
        url, _ = start_worker(transport, monarch_port=monarch_port, name=name)
        store.set(worker_key(rank // local_world_size), url)
    if rank != 0:
        return None
    num_hosts = world_size // local_world_size
    return [store.get(worker_key(host)).decode() for host in range(num_hosts)]


def _given_or_env(value: int | None, variable: str) -> int:
    if value is not None:
        return value
    text = os.environ.get(variable)
    if text is None:
        raise RuntimeError(
            f"{variable} is not set: run this under torchrun, or pass {variable.lower()}="
        )
    return int(text)


def worker_key(host: int) -> str:
    """Return the key at which the store has the address of a machine's host agent."""
    return f"monarch/worker/{host}"


def _worker_url(transport: str, port: int, name: str) -> str:
    """Return the URL for this machine's agent: where others connect to it, and where it listens.

    Raises ``ValueError`` for an unsupported transport, or for "tcp" without a port.
    """
    if transport == "ipc":
        directory = new_directory(new_uid())
        atexit.register(remove_directory, directory)
        return f"ipc://{directory}/{name}"
    if transport in _NETS and port <= 0:
        raise ValueError(
            f"monarch_port must be an explicit port for {transport}: others must know it"
        )
    if transport != "tcp":
        raise ValueError(f"unsupported transport {transport!r}; use 'ipc' or 'tcp'")
    return f"tcp://{socket.gethostname()}:{port}@tcp://0.0.0.0:{port}"


def start_worker(
    transport: str = "ipc", *, monarch_port: int = 0, name: str = "monarch_worker"
) -> tuple[str, int]:
    """Start a host agent that ends with this process; return its address and its pid."""
    url = _worker_url(transport, monarch_port, name)
    agent = start_agent(url, name, ends_with_us=True)
    _workers.append(agent)
    return url.partition("@")[0], agent.pid
