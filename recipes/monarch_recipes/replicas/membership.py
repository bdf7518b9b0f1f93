"""How a process becomes a member: of its group, and of the quorum of all groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import ProcessGroupGloo, ProcessGroupNCCL

from monarch.spmd.surroundings import use_interface
from monarch.tools.network import address_for
from monarch_recipes.replicas.lighthouse import check_reachable
from monarch_recipes.replicas.messages import Rendezvous, Seat
from monarch_recipes.replicas.torchft_cures import CarefulManager, ReachableTransport

__all__ = ["Patience", "become_member"]

_QUORUM_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Patience:
    """How long a member waits for others: in a collective, for a quorum, in a whole step."""

    collective_seconds: float
    quorum_seconds: float
    step_seconds: float


def become_member(
    seat: Seat,
    meet: Rendezvous,
    device: torch.device,
    patience: Patience,
    state: Callable[[], dict[str, Any]],
    load_state: Callable[[dict[str, Any]], None],
) -> CarefulManager:
    """From now on the others wait for this process in every step.

    ``state`` is what others heal from, with ``load_state``. Within a group of more than one the
    default process group is made. Raises LighthouseError.
    """
    check_reachable(meet.lighthouse, patience.collective_seconds)
    timeout = timedelta(seconds=patience.collective_seconds)
    address = address_for(meet.peers)
    use_interface(address)
    uses_nccl = device.type == "cuda"
    if seat.num_ranks > 1:
        store = dist.TCPStore(
            meet.store_host, meet.store_port, is_master=False, wait_for_workers=False
        )
        dist.init_process_group(
            "nccl" if uses_nccl else "gloo",
            store=dist.PrefixStore("within_group", store),
            rank=seat.rank,
            world_size=seat.num_ranks,
            timeout=timeout,
        )
    make_group = ProcessGroupNCCL if uses_nccl else ProcessGroupGloo
    return CarefulManager(
        patience_seconds=patience.step_seconds / 2,
        pg=make_group(timeout=timeout),
        state_dict=state,
        load_state_dict=load_state,
        min_replica_size=1,
        timeout=timeout,
        quorum_timeout=timedelta(seconds=patience.quorum_seconds),
        # It pauses for the share of the timeout that a retry has, and at least so long.
        quorum_retries=round(patience.quorum_seconds / _QUORUM_PAUSE_SECONDS),
        connect_timeout=timeout,
        rank=seat.rank,
        world_size=seat.num_ranks,
        store_addr=meet.store_host,
        store_port=meet.store_port,
        lighthouse_addr=meet.lighthouse,
        replica_id=f"group{seat.group}",
        port=0,
        hostname=address,
        heartbeat_interval=timedelta(milliseconds=100),
        checkpoint_transport=ReachableTransport(timeout, address),
    )
