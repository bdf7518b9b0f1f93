"""The store at which the ranks of a process group meet.

The stores of torch, gloo and NCCL accept every client. So if all ranks see the same files, the
store is a file in a folder that only this user can open. Otherwise, and for TorchFT, the store is a
server. If all ranks are on this machine, it listens on this machine alone; otherwise at the one
address through which the other hosts reach this machine.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _env_rendezvous_handler, _rendezvous_handlers

from monarch.actor import context
from monarch.errors import MonarchError
from monarch.runtime import process
from monarch.runtime.hosts.directory import store_path
from monarch.spmd.surroundings import hosts_beyond, shares_files, use_interface
from monarch.tools.backends import agree_on_backend
from monarch.tools.network import LOOPBACK, address_for

if hasattr(dist, "set_timeout"):  # from torch 2.14 on, where the private one warns
    from torch.distributed import set_timeout
else:
    from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout

_BACKLOG = 4096
_NO_LIMIT = timedelta(days=1)
_numbers = itertools.count(1)


class RendezvousError(MonarchError):
    """The ranks cannot meet, for example because a port is in use."""


def open_meeting(port: int = 0) -> tuple[object, str, int]:
    """Open the store for this actor's mesh. Return it and the two arguments of ``meet_at``.

    The caller must keep the store alive. If all ranks see the same files and ``port`` is 0, the
    store is a file, and the arguments are its path and 0. Otherwise it is a store of
    ``open_store``.
    """
    procs = context().actor_instance.proc_mesh
    if port == 0 and shares_files(procs):
        for url in process.current().node.address.urls:
            if url.startswith("ipc://"):
                # A new one each time: ranks may still have the one before.
                return None, store_path(url.removeprefix("ipc://"), next(_numbers)), 0
    return open_store(port, hosts_beyond(procs))


def open_store(port: int = 0, peers: Sequence[str] = ()) -> tuple[dist.TCPStore, str, int]:
    """Open a server where all ranks meet; return it, its address and its port. Keep it alive.

    Only this machine can connect. With ``peers`` it listens at the address through which these
    hosts reach this machine. Port 0 takes a free port, and keeps it from other programs. Raises
    ``RendezvousError`` if the port is in use.
    """
    address = address_for(peers)
    # A TCPStore that opens its own socket would listen on all interfaces.
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise RendezvousError(
                f"port {port} of {socket.gethostname()} is in use by another program: choose "
                "another, or 0 for any that is free"
            ) from None
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=os.dup(listener.fileno()),
        )
    return store, address, port


def meet_anew(store: tuple[str, int] | None, device: torch.device, call_seconds: float) -> str:
    """Leave the default process group, if any, and join a new one with all ranks.

    ``store`` is the last two results of ``open_meeting``; None meets at the place in the
    environment. Ranks wait for each other for twice ``call_seconds``, the longest time of a call of
    the client, plus 10 s. Returns why the backend is not NCCL although there are GPUs, else "".
    """
    if store is not None:
        meet_at(*store)
    if dist.is_initialized():
        dist.destroy_process_group()
    # This limit is for the meeting alone. It is longer than the client's, so that the client can
    # ask all ranks for their stacks first if one does not come.
    why_not_nccl = init_group(device, timedelta(seconds=2 * call_seconds + 10))
    # Collectives have no limit: the client knows how long a step may take, and ends ranks that
    # hang. Its clock stops while a person has a rank in a debugger; torch's clock cannot stop for a
    # collective in progress.
    set_timeout(_NO_LIMIT, dist.group.WORLD)
    return why_not_nccl


def meet_at(address: str, port: int) -> None:
    """Make ``init_process_group`` of this process meet the others at an open store.

    Port 0 means that ``address`` is the path of a file.
    """
    if port == 0:
        # torch takes its store from here if the caller names none, as TorchTitan does.
        _rendezvous_handlers["env"] = functools.partial(_meet_by_file, address)
        use_interface(LOOPBACK)
        return
    _rendezvous_handlers["env"] = _env_rendezvous_handler
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    # With this, torch's rank 0 does not open a store itself: ours is open already.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    use_interface(address)


def init_group(device: torch.device, timeout: timedelta) -> str:
    """Make the default process group with all ranks, at the place that ``meet_at`` has set.

    The ranks agree on a backend for their devices. Returns why it is not NCCL although there are
    GPUs, else "".
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(iter(dist.rendezvous("env://", rank, num_ranks, timeout=timeout)))
    store.set_timeout(timeout)
    backend, why = agree_on_backend(dist.PrefixStore("backend", store), rank, num_ranks, device)
    group = dist.PrefixStore("default", store)
    dist.init_process_group(backend, store=group, rank=rank, world_size=num_ranks, timeout=timeout)
    return why


def _meet_by_file(path: str, url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield a file store, this rank, and the number of ranks. Torch calls it for ``env://``."""
    del url
    num_ranks = int(os.environ["WORLD_SIZE"])
    # The last of these ranks to close the store removes the file.
    yield dist.FileStore(path, num_ranks), int(os.environ["RANK"]), num_ranks
