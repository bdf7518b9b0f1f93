"""A learning policy on one rank: forward and backward passes, updates, and its state."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from monarch_recipes.rollouts.groups import Rows
from monarch_recipes.rollouts.grpo import LossSettings, loss_of
from monarch_recipes.rollouts.policy import log_probs_of

Parallelism = Literal["none", "ddp", "fsdp"]

_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class NotFinite(ValueError):
    """The gradient is not finite. The step changed nothing."""


@dataclass(frozen=True)
class LearnSettings:
    """The settings of one step, which makes ``num_updates`` optimizer steps from the same
    samples.
    """

    loss: LossSettings
    learning_rate: float
    clip_norm: float | None
    num_updates: int
    micro_batch_size: int


class Learner:
    """The policy and its optimizer, on one rank of several or alone.

    ``build`` makes the policy; it must make the same one on all ranks. ``reference`` is the policy
    as it was at `begin_reinforcing`, for the KL divergence; None before.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
        *,
        parallelism: Parallelism,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.parallelism, self.device = parallelism, device
        self.rank, self.world_size = rank, world_size
        self._build, self._optimizer_of = build, optimizer_of
        self.policy = self._new_policy()
        self.optimizer = optimizer_of(self.policy)
        self.reference: nn.Module | None = None
        self.wrap()

    def _new_policy(self) -> nn.Module:
        policy = self._build().to(self.device)
        if self.parallelism == "fsdp":
            for block in policy.blocks:
                fully_shard(block)
            fully_shard(policy)
        return policy

    def wrap(self) -> None:
        """Wrap the policy so that its gradients are averaged over the present process group.

        Only ddp needs this; with other parallelism the policy is used as it is.
        """
        self.parallel: nn.Module = self.policy
        if self.parallelism == "ddp":
            ids = [self.device.index] if self.device.type == "cuda" else None
            self.parallel = DistributedDataParallel(self.policy, device_ids=ids)

    def imitate(self, tokens: Tensor, mask: Tensor, learning_rate: float) -> dict[str, float]:
        """Make one update towards the tokens that ``mask`` marks.

        Return the loss and the gradient norm. All ranks get the whole batch, and each uses its
        share.
        """
        total = float(mask.sum())
        tokens, mask = self._share(tokens), self._share(mask)
        log_probs = log_probs_of(self.parallel(tokens[:, :-1]), tokens[:, 1:], 1.0)
        loss = -(log_probs * mask).sum()
        (loss * self.world_size / total).backward()
        norm = self._update(learning_rate, 1.0)
        return {"loss": self._sums(loss.detach().double())[0] / total, "grad_norm": norm}

    def begin_reinforcing(self) -> None:
        """Copy the policy as the reference, and make a new optimizer."""
        state = get_model_state_dict(self.policy, options=StateDictOptions(full_state_dict=True))
        self._set_reference(state)
        self.optimizer = self._optimizer_of(self.policy)

    def _set_reference(self, state: dict[str, Any]) -> None:
        self.reference = self._new_policy().requires_grad_(False)
        set_model_state_dict(self.reference, state, options=StateDictOptions(full_state_dict=True))

    def learn(self, rows: Rows, settings: LearnSettings) -> dict[str, float]:
        """Make the updates of one step, and return its numbers by name.

        All ranks get the whole batch, and each uses its share. Raises NotFinite if a gradient is
        not finite.
        """
        total = float(rows.mask.sum())
        parts = self._parts(rows, settings.micro_batch_size)
        references = [self._reference_of(part, settings.loss.kl) for part in parts]
        # With a single update, these would equal the log-probabilities of that update.
        old_log_probs: list[Tensor] | None = None
        if settings.num_updates > 1:
            with torch.no_grad():
                old_log_probs = [self._log_probs(self.parallel, part) for part in parts]
        numbers: dict[str, float] = {}
        for update in range(settings.num_updates):
            sums = torch.zeros(4, dtype=torch.double, device=self.device)
            largest = torch.zeros((), device=self.device)
            for number, part in enumerate(parts):
                with self._accumulating(is_last=number == len(parts) - 1):
                    log_probs = self._log_probs(self.parallel, part)
                    loss_parts = loss_of(
                        log_probs,
                        log_probs.detach() if old_log_probs is None else old_log_probs[number],
                        part.behaviour,
                        references[number],
                        part.advantages,
                        part.mask,
                        settings.loss,
                    )
                    (loss_parts.loss * self.world_size / total).backward()
                sums += loss_parts.sums()
                largest = torch.maximum(largest, loss_parts.ratio_error)
            norm = self._update(settings.learning_rate, settings.clip_norm)
            loss, kl, num_clipped, ratio = self._sums(sums)
            if update == 0:
                if self.parallelism != "none":
                    dist.all_reduce(largest, dist.ReduceOp.MAX)
                numbers = {
                    "loss": loss / total,
                    "kl": kl / total,
                    "ratio": ratio / total,
                    "ratio_error": float(largest),
                }
        return numbers | {"clipped_share": num_clipped / total, "grad_norm": norm}

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the parameters by name. With fsdp they are this rank's shards.

        A parameter that two modules share appears once.
        """
        return {name: tensor.detach() for name, tensor in self.policy.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state on rank 0. All ranks must call it together."""
        reference = None
        if self.reference is not None:
            reference = get_model_state_dict(self.reference, options=_FULL)
        return {
            "model": get_model_state_dict(self.policy, options=_FULL),
            "optimizer": get_optimizer_state_dict(self.policy, self.optimizer, options=_FULL),
            "reference": reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of `state_dict`; every rank must have the whole state."""
        full = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.policy, state["model"], options=full)
        if state["reference"] is not None:
            self._set_reference(state["reference"])
            self.optimizer = self._optimizer_of(self.policy)
        set_optimizer_state_dict(self.policy, self.optimizer, state["optimizer"], options=full)

    def _share(self, tensor: Tensor) -> Tensor:
        return tensor[self.rank :: self.world_size].to(self.device)

    def _parts(self, rows: Rows, size: int) -> list[Rows]:
        """Return this rank's share of the rows, in micro-batches.

        Rows without a token are added, so that all ranks have the same number of micro-batches.
        """
        missing = -len(rows.tokens) % self.world_size

        def share(tensor: Tensor) -> Tensor:
            filling = torch.zeros_like(tensor[:1]).expand(missing, *tensor.shape[1:])
            return self._share(torch.cat([tensor, filling]) if missing else tensor)

        shared = Rows(*(share(getattr(rows, field.name)) for field in dataclasses.fields(rows)))
        return shared.micro_batches(size)

    def _log_probs(self, model: nn.Module, rows: Rows) -> Tensor:
        logits = model(rows.tokens[:, :-1])
        temperatures = rows.temperatures.clamp(min=1e-6)
        return log_probs_of(logits, rows.tokens[:, 1:], temperatures[:, None, None])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _reference_of(self, rows: Rows, weight: float) -> Tensor | None:
        if self.reference is None or weight == 0:
            return None
        return self._log_probs(self.reference, rows)

    @contextlib.contextmanager
    def _accumulating(self, *, is_last: bool) -> Iterator[None]:
        """Return a context in which gradients are averaged over ranks only for the last part of an
        update.
        """
        if self.parallelism == "fsdp":
            self.policy.set_requires_gradient_sync(is_last)
        is_local = self.parallelism == "ddp" and not is_last
        with self.parallel.no_sync() if is_local else contextlib.nullcontext():
            yield

    def _update(self, learning_rate: float, clip_norm: float | None) -> float:
        """Clip the gradients and step the optimizer; return the norm before clipping.

        Raises NotFinite, without a step, if the norm is not finite.
        """
        largest = math.inf if clip_norm is None else clip_norm
        total_norm = nn.utils.clip_grad_norm_(self.policy.parameters(), largest)
        if isinstance(total_norm, DTensor):
            total_norm = total_norm.full_tensor()
        norm = float(total_norm)
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise NotFinite(f"the norm of the gradient is {norm}")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _sums(self, values: Tensor) -> list[float]:
        """Add up these values over all ranks, in place, and return the sums."""
        if self.parallelism != "none":
            dist.all_reduce(values)
        sums: list[float] = values.reshape(-1).tolist()
        return sums
