"""Refuses optimizer steps with gradients that DDP has not averaged, while edited code is tried.

DDP averages a bucket of gradients when the last of them has come. If a new `forward` leaves a
parameter out, the bucket waits: each rank's optimizer would step with that rank's own gradients,
and DDP raises an error only in the next step, when the ranks differ for good.
"""

from __future__ import annotations

import re
import sys
import weakref
from typing import Any

from monarch_reload.live.all_objects import objects_of, with_subclasses
from monarch_sync.words import some

_MISSING = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_NUM_TOLD = 3
_wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
_guarded: list[object] = []  # the hook, once there is one


class GradientsNotAveraged(RuntimeError):
    """An optimizer was about to step with gradients of one rank alone."""


def has_averaged() -> bool:
    """Whether no DDP wrapper of this process has averaged only some of its gradients."""
    _see_wrappers()
    try:
        for wrapper in list(_wrappers):
            wrapper.reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def _see_wrappers() -> None:
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is not None:
        # Not isinstance: proxies would load what they stand for.
        wrappers = objects_of(with_subclasses(parallel.DistributedDataParallel))
        _wrappers.update(one for one in wrappers if hasattr(one, "reducer"))


def guard_optimizers() -> None:
    """Make optimizer steps raise ``GradientsNotAveraged`` while DDP waits for gradients of theirs.

    DDP wrappers that are made later are not seen; call it again.
    """
    _see_wrappers()
    if _wrappers and not _guarded:
        optimizer = sys.modules["torch.optim.optimizer"]
        _guarded.append(optimizer.register_optimizer_step_pre_hook(_check))


def _check(optimizer: Any, args: object, kwargs: object) -> None:
    groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
    for wrapper in list(_wrappers):
        if wrapper.process_group not in groups:
            continue  # It was given up in the middle of a step that failed.
        try:
            wrapper.reducer._check_reducer_finalized()
        except RuntimeError as error:
            stepped = {one for group in optimizer.param_groups for one in group["params"]}
            averaged = [(n, p) for n, p in wrapper.module.named_parameters() if p.requires_grad]
            if stepped.isdisjoint(parameter for _, parameter in averaged):
                continue
            told = _MISSING.search(str(error))
            indices = [int(one) for one in told[1].split()] if told else []
            names = [averaged[one][0] for one in indices if one < len(averaged)]
            which = some(names, _NUM_TOLD) or "some parameters"
            raise GradientsNotAveraged(
                f"the loss does not depend on {which}, so DDP "
                "waits for their gradients, and has not averaged others: each rank would learn "
                "something else. Make it depend on them, or wrap the model with "
                "find_unused_parameters=True"
            ) from None
