"""Makes a process a member of its group and of the quorum, and averages between members.

Members average the gradients of each batch, or from time to time the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import ProcessGroupGloo, ProcessGroupNCCL
from torchft.local_sgd import DiLoCo, LocalSGD

from monarch.spmd.surroundings import use_interface
from monarch.tools.backends import ON_CPUS, ON_GPUS
from monarch.tools.network import address_for
from monarch_recipes.buffers import Buffers
from monarch_recipes.replicas.lighthouse import check_reachable
from monarch_recipes.replicas.messages import Rendezvous, Seat
from monarch_recipes.replicas.torchft_cures import (
    CarefulManager,
    DistributedDataParallel,
    ReachableTransport,
    average_in_group,
)

_QUORUM_PAUSE_SECONDS = 0.1


def become_member(
    seat: Seat,
    meet: Rendezvous,
    config: Any,
    state: Callable[[], dict[str, Any]],
    load_state: Callable[[dict[str, Any]], None],
) -> CarefulManager:
    """Join the quorum, and return the TorchFT manager of this process.

    From then on the others wait for this process in each step. ``state`` returns the state from
    which other groups heal, and ``load_state`` loads it. In a group of several ranks this also
    makes the default process group. Raises LighthouseError if the lighthouse cannot be reached.
    """
    check_reachable(meet.lighthouse, config.collective_timeout_seconds)
    timeout = timedelta(seconds=config.collective_timeout_seconds)
    address = address_for(meet.peers)
    use_interface(address)
    if seat.num_ranks > 1:
        store = dist.TCPStore(
            meet.store_host, meet.store_port, is_master=False, wait_for_workers=False
        )
        dist.init_process_group(
            ON_GPUS if meet.uses_nccl else ON_CPUS,
            store=dist.PrefixStore("within_group", store),
            rank=seat.rank,
            world_size=seat.num_ranks,
            timeout=timeout,
        )
    make_group = ProcessGroupNCCL if meet.uses_nccl else ProcessGroupGloo
    return CarefulManager(
        patience_seconds=config.step_timeout_seconds / 2,
        pg=make_group(timeout=timeout),
        state_dict=state,
        load_state_dict=load_state,
        min_replica_size=1,
        timeout=timeout,
        quorum_timeout=timedelta(seconds=config.quorum_timeout_seconds),
        # Each retry gets this share of the timeout, and a pause of at least so long.
        quorum_retries=round(config.quorum_timeout_seconds / _QUORUM_PAUSE_SECONDS),
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


class Averaging:
    """Averages between groups, from the time a group joins until it leaves.

    Train `model`, which is the group's own model or a wrapper of it. `num_ranks` is the number of
    ranks that share the group's batches.
    """

    def __init__(
        self,
        algorithm: str,
        manager: CarefulManager,
        model: nn.Module,
        *,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer,
        sync_every: int,
        num_ranks: int,
    ) -> None:
        self._algorithm: LocalSGD | DiLoCo | None = None
        if algorithm == "ddp":
            self.model: nn.Module = DistributedDataParallel(manager, model)
            return
        self.model = model
        if num_ranks > 1:
            self.model = nn.parallel.DistributedDataParallel(model)
            self.model.broadcast_buffers = False  # They are averaged with those of other groups.
        self._algorithm = (
            LocalSGD(manager, model, inner, sync_every)
            if algorithm == "localsgd"
            else DiLoCo(manager, [model], inner, outer, sync_every)
        )
        self._algorithm.__enter__()

    def end(self) -> None:
        """Stop averaging.

        With diloco, drop what this group alone has learned since the last average.
        """
        if isinstance(self._algorithm, DiLoCo):
            # Steps of this group since the last average are not shared with the others.
            self._algorithm._restore_parameters()
        if self._algorithm is not None:
            self._algorithm.__exit__(None, None, None)


class SharedNumbers:
    """Averages numbers beside the gradient of a batch: its measures, and the model's buffers.

    Make one before the batch is computed, since that may change the buffers.
    """

    def __init__(self, manager: CarefulManager, buffers: Buffers) -> None:
        self._manager = manager
        self._buffers = buffers
        self._before = buffers.copies()

    def send(self, numbers: torch.Tensor) -> None:
        """Begin to average ``numbers``, shape (n,), float64, and the buffers over all groups."""
        self._num_numbers = len(numbers)
        self._row = torch.cat([numbers, self._buffers.packed().to(numbers.device)])
        average_in_group(self._row)
        self._wait = self._manager.begin_average(self._row)

    def received(self) -> list[float]:
        """Wait for the averages, and return the averages of the numbers that were sent."""
        self._wait()
        numbers: list[float] = self._row[: self._num_numbers].tolist()
        return numbers

    def keep(self) -> None:
        """Set the buffers to their averages, when the step is committed."""
        self._buffers.unpack(self._row[self._num_numbers :])

    def drop(self) -> None:
        """Restore the buffers from before the batch, when the step is not committed."""
        self._buffers.restore(self._before)


class SharedUsage:
    """Lets all groups agree on which parameters a step uses, so that all step the same ones.

    Usually code uses all parameters, and nothing is shared. When code first leaves one out, its
    step is discarded, and repeated with the usage shared between groups; so are all further steps
    of that code.
    """

    def __init__(self, manager: CarefulManager, model: nn.Module) -> None:
        self._manager = manager
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._generation: int | None = None  # of the code that leaves parameters out
        self._is_expected = False

    def expected(self, generation: int) -> float:
        """Return 1.0 if this process expects to leave parameters out in the next step, else 0.0.

        ``generation`` is that of the code. Average the result over all processes, for `share`.
        """
        self._is_expected = generation == self._generation
        self._manager.not_used = {} if self._is_expected else None
        return float(self._is_expected)

    def share(self, generation: int, *, is_expected: bool) -> None:
        """Share after the backward pass which parameters were used, if ``is_expected``.

        ``is_expected`` says that some process expects to leave parameters out. A parameter that
        only other processes used gets their gradient. If this process left parameters out but did
        not expect to, the step is discarded.
        """
        used = [parameter.grad is not None for parameter in self._parameters]
        if not all(used) and not self._is_expected:
            self._generation = generation
            self._manager.report_error(
                RuntimeError("its code leaves parameters out: the groups agree on which")
            )
        if not is_expected:
            return
        row = torch.tensor(used, dtype=torch.float64, device=self._parameters[0].device)
        average_in_group(row)
        self._manager.begin_average(row)()
        means = self._manager.not_used or {}
        for parameter, is_used, share in zip(self._parameters, used, row.tolist(), strict=True):
            if not is_used and share > 0:
                parameter.grad = means.get(parameter)


def average_buffers_of_groups(
    manager: CarefulManager, buffers: Buffers, device: torch.device
) -> None:
    """Average the buffers over all groups, if the step was committed."""
    row = buffers.packed().to(device)
    if row.numel() and manager.has_committed:
        average_in_group(row)
        manager.begin_average(row)()
        buffers.unpack(row)
