"""Group-relative policy optimization: advantages and loss, as plain functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_SPREAD = 1e-4


def advantages_of(rewards: Sequence[float]) -> list[float] | None:
    """Return how far each reward is from the mean of its group, in standard deviations.

    Returns None if all rewards are equal: nothing can be learned from them.
    """
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    if spread < _LEAST_SPREAD:
        return None
    return [(reward - mean) / spread for reward in rewards]


@dataclass(frozen=True)
class LossSettings:
    """Settings of the loss.

    ``clip`` limits how far the ratio to the policy before this step may leave 1. ``most_weight``
    limits the importance weights of samples of older policies. ``kl`` is the weight of the
    divergence from the reference policy.
    """

    clip: float
    most_weight: float
    kl: float


@dataclass(frozen=True)
class LossParts:
    """Sums over the tokens of a batch. Only ``loss`` has a gradient.

    ``ratio`` is the ratio of the probabilities under this policy and under the one that sampled;
    ``ratio_error`` is its largest distance from 1, not a sum.
    """

    loss: Tensor
    num_clipped: Tensor
    kl: Tensor
    ratio: Tensor
    ratio_error: Tensor

    def sums(self) -> Tensor:
        """Return the loss, ``kl``, ``num_clipped`` and ``ratio`` as one tensor, in float64."""
        sums = [self.loss.detach(), self.kl, self.num_clipped, self.ratio]
        return torch.stack([value.double() for value in sums])


def loss_of(
    log_probs: Tensor,
    before: Tensor,
    behaviour: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    settings: LossSettings,
) -> LossParts:
    """Return the loss, summed over the tokens that ``mask`` marks.

    All tensors are (N, T), except ``advantages``, which is (N). ``log_probs`` are the
    log-probabilities of the tokens under the policy that learns, ``before`` those before this
    step's first update, and ``behaviour`` those of the policy that made the samples. The clip
    limits the ratio to ``before``, and the importance weight corrects for ``behaviour`` (decoupled
    PPO, https://arxiv.org/abs/2110.00641).
    """
    mask = mask.to(log_probs.dtype)
    off_policy = (before - behaviour).detach().exp()
    weight = off_policy.clamp(max=settings.most_weight)
    ratio = (log_probs - before.detach()).exp()
    gain = advantages[:, None]
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    objective = weight * torch.minimum(ratio * gain, clipped * gain)
    divergence = torch.zeros_like(log_probs)
    if reference is not None:
        # Never negative, and its mean is the divergence (http://joschu.net/blog/kl-approx.html).
        ahead = reference - log_probs
        divergence = ahead.exp() - ahead - 1
    loss = ((settings.kl * divergence - objective) * mask).sum()
    to_behaviour = (log_probs - behaviour).detach().exp()
    return LossParts(
        loss=loss,
        num_clipped=((clipped != ratio) * mask).sum().detach(),
        kl=(divergence * mask).sum().detach(),
        ratio=(to_behaviour * mask).sum(),
        ratio_error=((to_behaviour - 1).abs() * mask).max(),
    )
