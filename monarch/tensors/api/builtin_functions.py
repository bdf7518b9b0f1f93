"""`monarch.builtins`: remote functions that every program may need."""

from __future__ import annotations

import logging
from typing import Any

import torch

from monarch.tensors.api.remote import remote

_logger = logging.getLogger("monarch.builtins.log")


def _log(*args: Any, level: int = logging.WARNING, **kwargs: Any) -> None:
    _logger.log(level, *args, **kwargs)


def _set_logging_level(level: int) -> None:
    _logger.setLevel(level)


def _set_manual_seed(seed: int, process_idx: Any = 0) -> None:
    torch.manual_seed(seed ^ int(process_idx))


def _state(*args: Any) -> torch.Tensor:
    return torch.empty(torch.get_rng_state().numel(), dtype=torch.uint8)


def _number(*args: Any) -> torch.Tensor:
    return torch.empty(1, dtype=torch.int64)


def _get_rng_state() -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(new_state: torch.Tensor) -> None:
    torch.set_rng_state(new_state.cpu())


def _random_seed() -> torch.Tensor:
    return _as_tensor(torch.seed())


def _initial_seed() -> torch.Tensor:
    return _as_tensor(torch.initial_seed())


def _as_tensor(seed: int) -> torch.Tensor:
    # A seed has 64 bits without a sign.
    return torch.tensor([seed if seed < 1 << 63 else seed - (1 << 64)], dtype=torch.int64)


def _manual_seed_cuda(seed: int) -> None:
    torch.cuda.manual_seed(seed)


def _manual_seed_all_cuda(seed: int) -> None:
    torch.cuda.manual_seed_all(seed)


def _get_rng_state_all_cuda() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all()  # type: ignore[no-any-return]


def _set_rng_state_all_cuda(states: list[torch.Tensor]) -> None:
    torch.cuda.set_rng_state_all([state.cpu() for state in states])


log_remote = remote(_log, propagate="inspect")
set_logging_level_remote = remote(_set_logging_level, propagate="inspect")
set_manual_seed_remote = remote(_set_manual_seed, propagate="inspect")
get_rng_state_remote = remote(_get_rng_state, propagate=_state)
set_rng_state_remote = remote(_set_rng_state, propagate="inspect")
random_seed_remote = remote(_random_seed, propagate=_number)
seed_remote = random_seed_remote
initial_seed_remote = remote(_initial_seed, propagate=_number)
manual_seed_cuda_remote = remote(_manual_seed_cuda, propagate="inspect")
manual_seed_all_cuda_remote = remote(_manual_seed_all_cuda, propagate="inspect")
get_rng_state_all_cuda_remote = remote(_get_rng_state_all_cuda)
set_rng_state_all_cuda_remote = remote(_set_rng_state_all_cuda, propagate="inspect")
