"""Lets TorchTitan 0.3 run on a torch before 2.14, for which it was not made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

# Looked up in this module, since `name_set_timeout` may have added it to `torch.distributed`.
IS_OLDER_TORCH = not hasattr(dist.distributed_c10d, "set_timeout")


def name_set_timeout() -> None:
    """Give an older torch the function `set_timeout`, which TorchTitan calls."""
    if IS_OLDER_TORCH:
        private: Any = dist.distributed_c10d
        dist.set_timeout = private._set_pg_timeout


class WholeBatches:
    """A pipeline schedule that takes separate micro-batches, for an older torch.

    It joins them into one batch, which the older schedule splits again.
    """

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":
            raise AttributeError(name)
        return getattr(self._schedule, name)

    def step(self, **batches: Any) -> Any:
        arguments, words = _whole(**batches)
        return self._schedule.step(*arguments, **words)

    def eval(self, **batches: Any) -> Any:
        arguments, words = _whole(**batches)
        return self._schedule.eval(*arguments, **words)


def _whole(
    *,
    arg_mbs: Sequence[tuple[torch.Tensor, ...]] | None,
    kwarg_mbs: Sequence[Mapping[str, Any]],
    target_mbs: Sequence[torch.Tensor] | None,
    **others: Any,
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    arguments = [torch.cat(parts) for parts in zip(*arg_mbs or (), strict=True)]
    words = {
        name: torch.cat([batch[name] for batch in kwarg_mbs]) if torch.is_tensor(value) else value
        for name, value in kwarg_mbs[0].items()
    }
    if target_mbs is not None:
        words["target"] = torch.cat(list(target_mbs))
    return arguments, {**words, **others}
