"""The rendezvous of a process group: the store at which its ranks meet.

torch's stores, gloo and NCCL let in every client. So where all ranks see the same files, the store
is a file in a folder that only this user can enter. Where there must be a server, as for TorchFT,
it listens on this machine alone if all ranks are on it, and otherwise at the one address that the
other hosts use.
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
    """The ranks cannot meet."""


def other_hosts() -> tuple[str, ...]:
    """The hosts that the procs of this actor's mesh are on; none where one machine has all."""
    return hosts_beyond(context().actor_instance.proc_mesh)


def open_meeting(port: int = 0) -> tuple[object, str, int]:
    """Open the meeting point of the ranks of this actor's mesh; return an object to keep alive, and
    the values for ``meet_at``.

    If all ranks see the same files and no port is asked for, it is the path of a file, and port 0;
    else a store of ``open_store``.
    """
    if port == 0 and shares_files(context().actor_instance.proc_mesh):
        for url in process.current().node.address.urls:
            if url.startswith("ipc://"):
                # A new one each time: ranks may still have the one before.
                return None, store_path(url.removeprefix("ipc://"), next(_numbers)), 0
    return open_store(port, other_hosts())


def open_store(port: int = 0, peers: Sequence[str] = ()) -> tuple[dist.TCPStore, str, int]:
    """Open a store at which all ranks meet; return it (keep it alive), its address and its port.

    Only this machine can connect, or with ``peers`` the machines that reach the address that these
    hosts use. Port 0 takes a free port and holds it: no other program can take it before the ranks
    have met. Raises ``RendezvousError`` for a port that is in use.
    """
    address = address_for(peers)
    # By itself a store listens on all interfaces.
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
    """Be in a process group with the others, in no other one. ``store`` is what ``open_meeting``
    has told of; None leaves it as it is. A call of the client may take ``call_seconds``.

    Returns why that is not NCCL, where there are GPUs.
    """
    if store is not None:
        meet_at(*store)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Only to meet. The client asks all for their stacks first, where one does not come.
    why_not_nccl = init_group(device, timedelta(seconds=2 * call_seconds + 10))
    leave_limits_to_client()
    return why_not_nccl


def leave_limits_to_client() -> None:
    """Remove the time limit from collectives of the default group.

    The client knows how long a step may take, and ends ranks that hang. Its clock stops while a
    person has a rank in a debugger; torch's clock cannot stop for a collective in progress.
    """
    set_timeout(_NO_LIMIT, dist.group.WORLD)


def meet_at(address: str, port: int) -> None:
    """Have ``init_process_group`` of this process meet the others at a store that is open, or at a
    file, which has port 0."""
    if port == 0:
        # torch looks for its store here where it is told of none, as by TorchTitan.
        _rendezvous_handlers["env"] = functools.partial(_meet_by_file, address)
        use_interface(LOOPBACK)
        return
    _rendezvous_handlers["env"] = _env_rendezvous_handler
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    # torch's word for: rank 0 must not open it, it is open.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    use_interface(address)


def init_group(device: torch.device, timeout: timedelta) -> str:
    """Make the default group of this process and the others, which ``meet_at`` says where to meet,
    with the backend for what they compute on. Returns why that is not NCCL, where there are GPUs.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(iter(dist.rendezvous("env://", rank, num_ranks, timeout=timeout)))
    store.set_timeout(timeout)
    asked = dist.PrefixStore("backend", store)
    backend, why = agree_on_backend(asked, rank, num_ranks, device)
    group = dist.PrefixStore("default", store)
    dist.init_process_group(backend, store=group, rank=rank, world_size=num_ranks, timeout=timeout)
    return why


def _meet_by_file(path: str, url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """The handler of ``env://``; rank and number of ranks come from the environment, as ever."""
    del url
    num_ranks = int(os.environ["WORLD_SIZE"])
    # The last of so many that lets go of the file removes it.
    yield dist.FileStore(path, num_ranks), int(os.environ["RANK"]), num_ranks
