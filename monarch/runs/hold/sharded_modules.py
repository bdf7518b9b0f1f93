"""Restores the sharded state of FSDP's modules after a step was interrupted.

Between two steps each rank has its shards. Within a step, FSDP replaces them by gathered
parameters, and records what its hooks have done and what is in progress: gathers that were begun
ahead, gradients that are not yet reduced, events. Torch's own ``reset_iter_state``, if it exists,
drops most of that; but gradients of gathered parameters stay, and would be added to those of the
next step. This module restores all attributes of each FSDP object, whatever this version of torch
keeps in them, once the parameters are sharded. The autograd graph must be gone by then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from monarch.runs.hold.tensor_copies import Changed

# Attributes that say where the parameters are; `to_sharded` sets them.
_PLACES = frozenset({"_sharded_state", "sharded_state"})
_IN_STEP = "FSDP's modules were in the midst of a step before"


def keep_sharded_modules() -> Callable[[], object] | None:
    """Record FSDP's state of all modules here; the returned function restores their shards.

    Returns ``None`` if no module is sharded. The returned function raises ``Changed`` if the
    modules were within a step when their state was recorded.
    """
    states = _states()
    if not states:
        return None
    groups = [group for state in states for group in _groups_of(state)]
    parameters = [parameter for group in groups for parameter in group.fsdp_params]
    shared = [getattr(state, name, None) for state in states for name in _SHARED]
    kept = [_KeptAttributes(x) for x in _each_once([*states, *shared, *groups, *parameters])]
    is_between_steps = all(owner._training_state.name == "IDLE" for owner in [*states, *groups])

    def put_back() -> None:
        if not is_between_steps:
            raise Changed(_IN_STEP)
        for device in {group.device for group in groups}:
            _wait_for(device)
        for group in groups:
            for parameter in group.fsdp_params:
                gathered = getattr(parameter, "_unsharded_param", None)
                if gathered is not None:
                    gathered.grad = None
                # In any state: a change of it may have been interrupted.
                parameter.to_sharded()
            group._sharded_state = type(group._sharded_state).SHARDED
        for attributes in kept:
            attributes.put_back()

    return put_back


_SHARED = "_state_ctx", "_comm_ctx"


def _states() -> list[Any]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if fsdp is None:
        return []
    of_modules: Any = sys.modules["torch.distributed._composable_state"]._module_state_mapping
    states = (state_ref() for state_ref in list(of_modules.values()))
    return list(_each_once(state for state in states if isinstance(state, fsdp.FSDPState)))


def _groups_of(state: Any) -> list[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    group = state._fsdp_param_group  # before torch 2.12
    return [] if group is None else [group]


def _each_once(values: Iterable[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for value in values:
        if value is not None and id(value) not in seen:
            seen.add(id(value))
            yield value


def _wait_for(device: Any) -> None:
    """Wait until a device has done the work that was queued on it. That work may still use memory
    that is about to be freed.
    """
    torch: Any = sys.modules["torch"]
    if device.type != "cpu":
        with contextlib.suppress(RuntimeError):  # of a group that was aborted
            torch.accelerator.synchronize(device)


class _KeptAttributes:
    """A copy of one object's attributes, and of the entries of the containers in them."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._attributes = dict(vars(owner))
        self._containers = [
            (value, value.copy())
            for value in self._attributes.values()
            if isinstance(value, (dict, list, set))
        ]

    def put_back(self) -> None:
        current = vars(self._owner)
        for name in [name for name in current if name not in self._attributes]:
            if name not in _PLACES:
                del current[name]
        for name, value in self._attributes.items():
            if name not in _PLACES and current.get(name) is not value:
                current[name] = value
        for container, entries in self._containers:
            if isinstance(container, list):
                container[:] = entries
            else:
                container.clear()
                container.update(entries)
