"""What the groups of a run share: the gradient of each batch, or now and then what each learnt."""

from __future__ import annotations

import torch
from torch import nn
from torchft.local_sgd import DiLoCo, LocalSGD

from monarch_recipes.replicas.torchft_cures import CarefulManager, DistributedDataParallel

__all__ = ["Averaging"]


class Averaging:
    """From the time a group joins until it leaves. Train `model`, which is the group's own one,
    or around it; `num_ranks` is how many the group has, and shares the batches of."""

    def __init__(
        self,
        algorithm: str,
        manager: CarefulManager,
        model: nn.Module,
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
        if isinstance(self._algorithm, DiLoCo):
            # What this group has learnt since the last step that all shared is its own.
            self._algorithm._restore_parameters()
        if self._algorithm is not None:
            self._algorithm.__exit__(None, None, None)
