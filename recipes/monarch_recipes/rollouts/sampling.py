"""Samples completions in batches with a KV cache.

A finished sequence frees its slot for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from monarch_recipes.rollouts.policy import END, Cache, Policy


@dataclass(frozen=True)
class SampleRequest:
    """A prompt to complete.

    The completion depends on ``seed``, not on the other requests of a batch.
    """

    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class SampledTokens:
    """The tokens of a completion, and the log-probability of each at the sampling temperature."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass
class _Sequence:
    number: int
    draws: list[float]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@torch.no_grad()  # type: ignore[untyped-decorator]
def sample(
    policy: Policy,
    requests: Sequence[SampleRequest],
    *,
    temperature: float,
    max_tokens: int,
    num_slots: int,
) -> list[SampledTokens]:
    """Return a completion of each request, sampled from the policy in `num_slots` parallel
    sequences.

    A temperature of 0 takes the likeliest token each time. Raises ValueError if a prompt and
    ``max_tokens`` more do not fit into the policy's positions.
    """
    longest = max((len(request.prompt) for request in requests), default=0)
    if longest + max_tokens > policy.num_positions:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_tokens} more do not fit into the "
            f"{policy.num_positions} positions of the policy"
        )
    device = policy.tokens.weight.device
    cache = Cache(policy, min(num_slots, len(requests)), longest + max_tokens)
    waiting = deque(enumerate(requests))
    free = list(reversed(range(len(cache.lengths))))
    running: dict[int, _Sequence] = {}
    completions: dict[int, SampledTokens] = {}

    def take(slots: list[int], logits: torch.Tensor) -> None:
        """Draw the next token of each of these slots, and free the slots that are finished."""
        log_probs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
        if temperature:
            draws = [running[slot].draws[len(running[slot].tokens)] for slot in slots]
            shares = log_probs.double().exp().cumsum(-1)
            drawn = torch.tensor(draws, dtype=torch.double, device=device)[:, None]
            tokens = torch.searchsorted(shares, drawn * shares[:, -1:], right=True)
            tokens = tokens.clamp(max=logits.shape[-1] - 1)
        else:
            tokens = log_probs.argmax(-1, keepdim=True)
        taken = log_probs.gather(-1, tokens)
        pairs = zip(slots, tokens[:, 0].tolist(), taken[:, 0].tolist(), strict=True)
        for slot, token, log_prob in pairs:
            sequence = running[slot]
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            if token == END or len(sequence.tokens) == max_tokens:
                completions[sequence.number] = SampledTokens(
                    tuple(sequence.tokens), tuple(sequence.log_probs)
                )
                del running[slot]
                free.append(slot)

    while waiting or running:
        begun: list[int] = []
        prompts: list[tuple[int, ...]] = []
        while waiting and free:
            number, request = waiting.popleft()
            slot = free.pop()
            generator = torch.Generator().manual_seed(request.seed)
            draws = torch.rand(max_tokens, generator=generator, dtype=torch.double).tolist()
            running[slot] = _Sequence(number, draws)
            begun.append(slot)
            prompts.append(request.prompt)
        going = [slot for slot in running if slot not in set(begun)]
        if begun:
            lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
            rows = [list(prompt) + [0] * (int(lengths.max()) - len(prompt)) for prompt in prompts]
            slots = torch.tensor(begun, device=device)
            cache.lengths[slots] = 0
            take(begun, policy.extend(torch.tensor(rows, device=device), cache, slots, lengths))
        if going:
            last = torch.tensor([[running[slot].tokens[-1]] for slot in going], device=device)
            ones = torch.ones(len(going), dtype=torch.long, device=device)
            take(going, policy.extend(last, cache, torch.tensor(going, device=device), ones))
    return [completions[number] for number in range(len(requests))]
