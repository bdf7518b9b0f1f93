"""SampleGroup-relative policy optimization: advantages and loss, as plain functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_SPREAD = 1e-4


def advantages_of(rewards: Sequence[float]) -> list[float] | None:
    """How much better than its group each sample is, in standard deviations; ``None`` where all are
    alike, so that nothing can be learned from them."""
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    if spread < _LEAST_SPREAD:
        return None
    return [(reward - mean) / spread for reward in rewards]


@dataclass(frozen=True)
class LossSettings:
    """``clip`` bounds the step away from the policy before it; ``most_weight`` truncates the
    importance weights of samples of older policies; ``kl`` weighs the distance to the reference."""

    clip: float
    most_weight: float
    kl: float


@dataclass(frozen=True)
class LossParts:
    """Sums over tokens, for means over all ranks: ``loss`` with its gradient, the others without.
    ``ratio_error`` is the largest distance of a ratio to the behaviour policy from 1."""

    loss: Tensor
    num_tokens: Tensor
    num_clipped: Tensor
    kl: Tensor
    ratio: Tensor
    ratio_error: Tensor


def loss_of(
    log_probs: Tensor,
    before: Tensor,
    behaviour: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    settings: LossSettings,
) -> LossParts:
    """The summed loss of the tokens that ``mask`` marks; all are (N, T), ``advantages`` is (N).

    ``before`` are the log-probabilities of the policy before this step's first update, and
    ``behaviour`` those of the policy that made the samples: the clip is about the former, and the
    importance weight corrects for the latter (decoupled PPO, https://arxiv.org/abs/2110.00641).
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
        num_tokens=mask.sum(),
        num_clipped=((clipped != ratio) * mask).sum().detach(),
        kl=(divergence * mask).sum().detach(),
        ratio=(to_behaviour * mask).sum(),
        ratio_error=((to_behaviour - 1).abs() * mask).max(),
    )
