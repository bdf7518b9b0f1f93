"""`monarch.random`: the random numbers of the workers.

Without a seed each rank has numbers of its own; `make_deterministic` gives all the same seed.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

from monarch.tensors.api.remote import remote


class State(NamedTuple):
    """The states of each worker's generators, as tensors of bytes. ``cuda`` is that of the
    worker's GPU, and zeros where it has none."""

    cpu: Any
    cuda: Any


_CPU_BYTES = torch.get_rng_state().numel()
_CUDA_BYTES = 16


def _rule(*args: Any) -> State:
    return State(
        torch.empty(_CPU_BYTES, dtype=torch.uint8), torch.empty(_CUDA_BYTES, dtype=torch.uint8)
    )


def _get_state() -> State:
    has_gpu = torch.cuda.is_available()
    return State(torch.get_rng_state(), torch.cuda.get_rng_state() if has_gpu else _no_gpu())


def _set_state(state: State) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu.cpu())
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda.cpu())


def _new_state(seed: torch.Tensor) -> State:
    number = int(seed)
    cpu = torch.Generator().manual_seed(number).get_state()
    if not torch.cuda.is_available():
        return State(cpu, _no_gpu())
    return State(cpu, torch.Generator("cuda").manual_seed(number).get_state())


def _no_gpu() -> torch.Tensor:
    return torch.zeros(_CUDA_BYTES, dtype=torch.uint8)


def _make_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(0)


get_state = remote(_get_state, propagate=_rule)
"""The ``State`` of each worker's generators."""

set_state = remote(_set_state, propagate="inspect")
"""Give each worker's generators such a ``State``."""

new_state = remote(_new_state, propagate=_rule)
"""The ``State`` of generators that a tensor of one number has seeded; of a rank tensor, say."""

make_deterministic = remote(_make_deterministic, propagate="inspect")
"""Have workers use deterministic algorithms, and seed them all alike."""
