"""The process groups of torch.distributed that collectives run in."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from monarch.tools.backends import agree_on_backend
from monarch.tools.network import host_name

_LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)


class MeshShape(NamedTuple):
    """A device mesh as workers know it; its ranks count all workers of the client."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def coordinates(self, rank: int) -> dict[str, int] | None:
        """Return the coordinates of ``rank`` in the mesh; ``None`` if it is no member."""
        for point in itertools.product(*map(range, self.sizes)):
            if self._rank(point) == rank:
                return dict(zip(self.names, point, strict=True))
        return None

    def all_peers(self, dims: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Return the ranks of each group along ``dims``; all members get the same list."""
        members = map(self._rank, itertools.product(*map(range, self.sizes)))
        return list(dict.fromkeys(self.peers(rank, dims) for rank in members))

    def peers(self, rank: int, dims: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ranks whose coordinates differ from those of ``rank`` along ``dims`` alone.

        They include ``rank``, and are in the order of ``dims``.
        """
        coordinates = self.coordinates(rank)
        assert coordinates is not None
        sizes = dict(zip(self.names, self.sizes, strict=True))
        ranks = []
        for point in itertools.product(*(range(sizes[dim]) for dim in dims)):
            peer = {**coordinates, **dict(zip(dims, point, strict=True))}
            ranks.append(self._rank(tuple(peer[name] for name in self.names)))
        return tuple(ranks)

    def _rank(self, point: tuple[int, ...]) -> int:
        steps = zip(point, self.strides, strict=True)
        return self.offset + sum(coordinate * stride for coordinate, stride in steps)


class ProcessGroups:
    """The process groups of one worker.

    Torch names a group by the number of groups made before it. So all workers make all groups, even
    those that they are no members of, on one thread and in the order of the definitions.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        #: The store at which the workers meet, if this worker has it.
        self._listening: Any = None
        #: The groups by their ranks and use; ``None`` for a group without this worker.
        self._made: dict[tuple[tuple[int, ...], Hashable], Any] = {}
        #: The group of this worker only.
        self._alone: Any = None
        #: Whether we have initialized torch.distributed in this process.
        self._is_ours = False

    def listen(self, is_one_machine: bool) -> tuple[str, int]:
        """Start the store at which the workers meet, once, and return its host name and port."""
        address = _LOOPBACK if is_one_machine else host_name()
        if self._listening is None:
            self._listening = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        return address, self._listening.port

    @property
    def go_by_host(self) -> bool:
        """Return whether collectives of GPU tensors go through the host's memory.

        They do where ranks share a GPU: these use gloo, which does not support GPU memory for each
        collective.
        """
        if not torch.cuda.is_available() or not dist.is_initialized():
            return False
        return "nccl" not in dist.get_backend_config()

    def make(self, all_ranks: Iterable[tuple[int, ...]], use: Hashable) -> None:
        """Make the groups of these ranks for ``use``, such as the collectives of a stream.

        Each ``use`` needs groups of its own: two would receive each other's messages.
        """
        for ranks in all_ranks:
            if (ranks, use) not in self._made:
                group = dist.new_group(list(ranks))
                self._made[ranks, use] = group if self._rank in ranks else None

    def of(self, ranks: tuple[int, ...], use: Hashable) -> Any:
        """Return the group that ``make`` has made of these ranks for ``use``.

        Raises ``KeyError`` if there is none.
        """
        return self._made[ranks, use]

    def alone(self) -> Any:
        """Return a group of this worker only; making it does not change the names of other
        groups."""
        if self._alone is None:
            self._alone = dist.new_group([self._rank], use_local_synchronization=True)
        return self._alone

    def meet(self, host: str, port: int) -> None:
        """Join torch.distributed with all workers.

        Each worker must do so at the same place in the order of definitions. Raises
        ``RuntimeError`` if this process has joined torch.distributed already, as another rank.
        """
        if dist.is_initialized():
            if (dist.get_rank(), dist.get_world_size()) != (self._rank, self._world):
                raise RuntimeError(
                    "torch.distributed is initialized in this process with other ranks than those "
                    f"of the mesh ({dist.get_rank()} of {dist.get_world_size()}, where the mesh "
                    f"has {self._rank} of {self._world}): collectives of distributed tensors need "
                    "it. Call dist.destroy_process_group() first, or use other procs"
                )
            return
        # gloo's older names are deprecated in newer torch, and the newer ones missing in older.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        backend, why = agree_on_backend(store, self._rank, self._world, device)
        if why and self._rank == 0:
            _log.warning("tensors: %s", why)
        dist.init_process_group(backend, store=store, rank=self._rank, world_size=self._world)
        self._is_ours = True

    def close(self) -> None:
        if self._is_ours and dist.is_initialized():
            dist.destroy_process_group()
