"""`monarch.random`: the random numbers of the workers.

Without a seed each rank has numbers of its own; `make_deterministic` gives all the same seed.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from monarch.tensors.api.remote import remote


def _rule(*args: Any) -> torch.Tensor:
    return torch.empty(_STATE_BYTES, dtype=torch.uint8)


_STATE_BYTES = torch.get_rng_state().numel()


def _get_state() -> torch.Tensor:
    return torch.get_rng_state()


def _set_state(state: torch.Tensor) -> None:
    torch.set_rng_state(state.cpu())


def _new_state(seed: torch.Tensor) -> torch.Tensor:
    return torch.Generator().manual_seed(int(seed)).get_state()


def _make_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(0)


get_state = remote(_get_state, propagate=_rule)
"""The state of each worker's generator, as a tensor."""

set_state = remote(_set_state, propagate="inspect")
"""Give each worker's generator such a state."""

new_state = remote(_new_state, propagate=_rule)
"""The state of a generator that a tensor of one number has seeded; of a rank tensor, say."""

make_deterministic = remote(_make_deterministic, propagate="inspect")
"""Have workers use deterministic algorithms, and seed them all alike."""
