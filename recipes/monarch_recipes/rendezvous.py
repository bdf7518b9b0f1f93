"""Where the ranks of a process group meet."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

from monarch.tools.network import host_name

__all__ = ["RendezvousError", "meet_at", "open_store"]


class RendezvousError(RuntimeError):
    """The ranks cannot meet."""


def open_store(port: int = 0) -> tuple[dist.TCPStore, str, int]:
    """A store for all ranks to meet at, and its host and port; to be kept by who opened it.

    Port 0 takes one that is free, and holds it from then on: nobody can take it before the ranks
    have met. Raises ``RendezvousError`` for a port that is in use.
    """
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        if "EADDRINUSE" not in str(error) and "in use" not in str(error):
            raise
        raise RendezvousError(
            f"port {port} of {socket.gethostname()} is in use by another program: choose another, "
            "or 0 for any that is free"
        ) from None
    return store, host_name(), store.port


def meet_at(host: str, port: int) -> None:
    """Have ``init_process_group`` of this process meet the others at a store that is open."""
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
    # torch's word for: rank 0 must not open it, somebody has.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
