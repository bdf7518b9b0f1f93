"""Averages gradients over all ranks, even if a step does not use all parameters.

DDP averages a bucket of gradients when its last gradient is computed. If an edit of `forward`
leaves a parameter out, its bucket never fills: nothing is averaged, the optimizer of each rank
steps with its own gradients, and DDP raises an error only in the next step, when the ranks already
differ.

Here such a step is completed after its backward pass: missing gradients count as zero, so that all
ranks reduce the same buckets. The result is the same as with `find_unused_parameters`, which would
also cost time in steps that use all parameters.
"""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch.errors import MonarchError
from monarch_sync.words import some

_MISSING = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_NUM_TOLD = 3


class NotTrained(MonarchError):
    """A gradient cannot be averaged, or the optimizer lacks its parameter.

    The step changed nothing.
    """


class AveragedGradients:
    """Averages the gradients of ``model``, which DDP has wrapped as ``parallel``, over all ranks.

    In each step call `expect` before the backward pass that averages, and `complete` after it. If
    `complete` returns more than 0 on any rank, all ranks call `agree`.
    """

    def __init__(
        self,
        parallel: DistributedDataParallel,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._parallel = parallel
        self._model = model
        self._optimizer = optimizer
        #: The names of the model's parameters.
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        ignored = parallel.parameters_to_ignore
        #: The parameters that DDP averages, in the order of the reducer's indices.
        self._averaged = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        self._is_averaged = set(self._averaged)
        #: The optimizer's parameters that DDP does not average, and how many the optimizer had when
        #: these were found.
        self._others: list[torch.Tensor] = []
        self._num_stepped = -1
        #: Whether this rank used each parameter in the step; None if all have gradients.
        self._used: list[bool] | None = None
        #: The reducer's statistics before the backward pass.
        self._old_stats: list[int] = []

    def expect(self) -> None:
        """Prepare `complete`: remember the state of DDP before the backward pass that averages.

        `complete` compares with it, to see whether DDP has averaged any gradient.
        """
        self._old_stats = self._parallel.reducer.get_backward_stats()

    def complete(self) -> int:
        """Average all gradients; parameters that this rank did not use count as zero.

        Returns the number of these parameters, plus the number of parameters with a gradient that
        DDP does not average. Raises NotTrained if the gradients cannot be averaged.
        """
        missing = self._missing()
        self._used = None
        if missing:
            self._used = self._have_gradients()  # An earlier micro-batch may have used them.
            self._finish(missing)
        return len(missing) + len(self.not_averaged())

    def not_averaged(self) -> list[str]:
        """Return the names of parameters that have a gradient which DDP does not average."""
        return [
            self._names.get(parameter, "a parameter of the optimizer")
            for parameter in self._find_others()
            if parameter.grad is not None
        ]

    def agree(self) -> tuple[str, ...]:
        """Return the names of the parameters that no rank used, and remove their gradients.

        All ranks must call it together. Averages the gradients that DDP does not average. Raises
        NotTrained, on all ranks, if the model has a parameter that the optimizer does not have.
        """
        others = self._find_others()
        replaced = self._replaced()
        used_here = self._have_gradients() if self._used is None else self._used
        flags = [*used_here, *(other.grad is not None for other in others), bool(replaced)]
        num_others = torch.tensor([len(others), -len(others)], device=self._device)
        dist.all_reduce(num_others, op=dist.ReduceOp.MAX)
        if int(num_others[0]) != -int(num_others[1]):
            raise NotTrained("the optimizers of the ranks have different numbers of parameters")
        counts = torch.tensor([int(flag) for flag in flags], device=self._device)
        dist.all_reduce(counts)
        *used, num_replaced = counts.tolist()
        if num_replaced:
            names = some(replaced, _NUM_TOLD) if replaced else "a parameter of another rank"
            raise NotTrained(
                f"{names} is now another object than the one that the optimizer has, so that it "
                "would not be trained: change its values in place, under torch.no_grad()"
            )
        for parameter, num_ranks in zip(self._averaged, used, strict=False):
            if not num_ranks:
                parameter.grad = None  # So that the optimizer does not step it.
        for parameter, num_ranks in zip(others, used[len(self._averaged) :], strict=True):
            if num_ranks:
                # As DDP does: divide first, then add up.
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.mul_(1.0 / dist.get_world_size())
                dist.all_reduce(parameter.grad)
        return tuple(
            self._names[parameter]
            for parameter, num_ranks in zip(self._averaged, used, strict=False)
            if not num_ranks
        )

    @property
    def _device(self) -> torch.device:
        return self._averaged[0].device

    def _missing(self) -> list[int]:
        """Return the indices of the parameters whose gradients the reducer still expects.

        Raises NotTrained if the reducer reports another error.
        """
        reducer = self._parallel.reducer
        try:
            reducer._check_reducer_finalized()
        except RuntimeError as error:
            match = _MISSING.search(str(error))
            if match is None or self._parallel.static_graph:
                raise NotTrained(
                    f"not all gradients were averaged over the ranks: {error}"
                ) from error
            return [int(index) for index in match[1].split()]
        if self._old_stats and reducer.get_backward_stats() == self._old_stats:
            if self._parallel.find_unused_parameters:  # It searches only after a first gradient.
                raise NotTrained("the loss depends on no parameter whose gradient is averaged")
            return list(range(len(self._averaged)))  # No gradient reached the reducer.
        return []

    def _finish(self, missing: list[int]) -> None:
        """Tell the reducer that the gradients with the indices ``missing`` are complete.

        The reducer accepts this only during a backward pass, so the method runs a small one.
        """
        reducer = self._parallel.reducer

        def tell(gradient: torch.Tensor) -> None:
            for index in missing:
                reducer._autograd_hook(index)

        trigger = torch.zeros((), requires_grad=True, device=self._device)
        trigger.register_hook(tell)
        trigger.backward()
        reducer._check_reducer_finalized()

    def _have_gradients(self) -> list[bool]:
        return [parameter.grad is not None for parameter in self._averaged]

    def _find_others(self) -> list[torch.Tensor]:
        """Return the optimizer's parameters that DDP does not average.

        They were frozen when DDP was made, or belong to another module than the model, such as a
        loss with parameters.
        """
        groups = self._optimizer.param_groups
        num_stepped = sum(len(group["params"]) for group in groups)
        if num_stepped != self._num_stepped:
            self._num_stepped = num_stepped
            self._others = [
                parameter
                for group in groups
                for parameter in group["params"]
                if parameter not in self._is_averaged
            ]
        return self._others

    def _replaced(self) -> list[str]:
        parameters = set(self._names) | set(self._find_others())
        return [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and parameter not in parameters
        ]
