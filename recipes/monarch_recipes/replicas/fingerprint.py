"""Whether replicas still have the same parameters and buffers, told by a digest of them.

Two groups that went on alone, each thinking that the other was dead, look healthy: their losses
fall, their steps are equal. So does one that learns at another rate than the rest. Only their
parameters differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

__all__ = ["FingerprintBook", "fingerprint", "fingerprint_of"]


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """A digest of the tensors' bits, in their order; equal on every machine."""
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def fingerprint_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> str:
    """A digest of parameters and buffers, and of what the optimizer remembers, if given."""
    tensors: list[torch.Tensor] = list(model.state_dict().values())
    if optimizer is not None:
        tensors += [
            value
            for _, state in sorted(optimizer.state_dict()["state"].items())
            for _, value in sorted(state.items())
            if isinstance(value, torch.Tensor)
        ]
    return fingerprint(tensors)


class FingerprintBook:
    """What each group had at a step; the first to tell is right, until there are more of another.

    ``agreed_step`` is the last step at which two groups were found equal.
    """

    def __init__(self) -> None:
        self.agreed_step = 0
        self._told: dict[int, dict[int, str]] = {}

    def add(self, step: int, group: int, digests: Sequence[str]) -> dict[int, str]:
        """What is wrong, by the group that it is wrong with; ``digests`` has one of each rank."""
        told = self._told.setdefault(step, {})
        self._forget_all_but_the_newest()
        if len(set(digests)) > 1:
            return {group: f"its ranks differ at step {step}: {', '.join(digests)}"}
        told[group] = digests[0]
        if len(told) > 1 and len(set(told.values())) == 1:
            self.agreed_step = max(self.agreed_step, step)
        right = self.reference(step)
        return {
            other: f"it has {digest} at step {step}, where group {right} has {told[right]}"
            for other, digest in told.items()
            if digest != told[right]
        }

    def reference(self, step: int) -> int:
        """The group that the others are to agree with at a step: the first of the most."""
        told = list(self._told[step].values())
        return max(self._told[step], key=lambda group: told.count(self._told[step][group]))

    def of(self, step: int) -> dict[int, str]:
        """The digests of a step, by group."""
        return dict(self._told.get(step, {}))

    def forget(self, group: int) -> None:
        """A group is made anew: what it had does not count any more."""
        for told in self._told.values():
            told.pop(group, None)

    def roll_back(self) -> None:
        """The run goes on from a checkpoint: its steps are made once more."""
        self._told.clear()

    def _forget_all_but_the_newest(self, num_kept: int = 4) -> None:
        for step in sorted(self._told)[:-num_kept]:
            del self._told[step]
