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
_noted: list[object] = []  # the handle of the hook that notes new wrappers
_guarded: list[object] = []  # the handle of the hook, once it is registered


class GradientsNotAveraged(RuntimeError):
    """An optimizer was about to step with gradients of one rank alone."""


def has_averaged() -> bool:
    """Whether no DDP wrapper in this process is in the middle of averaging its gradients. A wrapper
    that has not begun to average does not count.
    """
    _see_wrappers()
    try:
        for wrapper in _complete_wrappers():
            wrapper.reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def _see_wrappers() -> None:
    """Find the wrappers that exist, once: it takes long. A hook notes those that come later."""
    parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None or _noted:
        return
    kind = parallel.DistributedDataParallel

    def note(module: Any, name: str, part: object) -> None:
        if isinstance(module, kind):
            _wrappers.add(module)

    modules: Any = sys.modules["torch.nn.modules.module"]
    _noted.append(modules.register_module_module_registration_hook(note))
    # Without isinstance, for which lazy proxies would load their objects.
    _wrappers.update(objects_of(with_subclasses(kind)))


def _complete_wrappers() -> list[Any]:
    return [wrapper for wrapper in list(_wrappers) if hasattr(wrapper, "reducer")]


def guard_optimizers() -> None:
    """Make an optimizer's step raise ``GradientsNotAveraged`` while DDP waits for its gradients."""
    _see_wrappers()
    if _noted and not _guarded:
        optimizer = sys.modules["torch.optim.optimizer"]
        _guarded.append(optimizer.register_optimizer_step_pre_hook(_check))


def _check(optimizer: Any, args: object, kwargs: object) -> None:
    for wrapper in _complete_wrappers():
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
        if wrapper.process_group not in groups:
            continue  # It was given up during a step that failed.
        try:
            wrapper.reducer._check_reducer_finalized()
        except RuntimeError as error:
            stepped = {
                parameter for group in optimizer.param_groups for parameter in group["params"]
            }
            averaged = [(n, p) for n, p in wrapper.module.named_parameters() if p.requires_grad]
            if stepped.isdisjoint(parameter for _, parameter in averaged):
                continue
            missing = _MISSING.search(str(error))
            indices = [int(index) for index in missing[1].split()] if missing else []
            names = [averaged[index][0] for index in indices if index < len(averaged)]
            parameters = some(names, _NUM_TOLD) or "some parameters"
            raise GradientsNotAveraged(
                f"the loss does not depend on {parameters}, so DDP "
                "waits for their gradients, and has not averaged others: each rank would learn "
                "something else. Make it depend on them, or wrap the model with "
                "find_unused_parameters=True"
            ) from None
