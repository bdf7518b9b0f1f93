"""Finds which parts of a sharded model (FSDP) a step has run.

For ranks that wait for each other, it shows which parts a rank has left out.

If only some ranks run a part, only they gather it: they wait for the others, which are in another
part by then, or in the backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from monarch_reload.live.all_objects import objects_of
from monarch_sync.words import some

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_STATES = "FORWARD", "PRE_BACKWARD", "POST_BACKWARD"


class ModulesRun(NamedTuple):
    """The ``parts`` of all models, in order, and the parts that have ``run`` since the step began.

    A part that is running counts as run. ``is_forward_over``: no more parts will run in this step.
    """

    parts: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    is_forward_over: bool = False

    def left_out(self) -> set[str]:
        """Return the parts that have not run, although a later part has, or the forward pass is
        over.
        """
        last = max((self.parts.index(part) for part in self.run if part in self.parts), default=-1)
        passed = self.parts if self.is_forward_over else self.parts[: last + 1]
        return set(passed) - set(self.run)


NOTHING_RUN = ModulesRun()


def modules_run_here() -> ModulesRun:
    """Return the parts of this process's models. It looks at every Python object."""
    module: Any = sys.modules.get(_MODULE)
    state_class = getattr(module, "FSDPState", None)
    if state_class is None:
        return NOTHING_RUN
    try:
        return _of_states(objects_of({state_class}))
    except AttributeError:  # Another version of torch may lack these attributes.
        return NOTHING_RUN


def _of_states(states: Sequence[Any]) -> ModulesRun:
    groups = [group for state in states for group in state._fsdp_param_groups]
    ended: list[Any] = []
    for context in {id(state._comm_ctx): state._comm_ctx for state in states}.values():
        ended += context.post_forward_order
    running = [group for group in groups if group._training_state.name in _STATES]
    is_over = any(group._training_state.name in _STATES[1:] for group in groups)
    roots = [state for state in states if state._is_root]
    ordered = [name for root in roots for name in _names(root._state_ctx.all_states)]
    run = [group._module_fqn for group in (*ended, *running) if group._module_fqn]
    return ModulesRun(tuple(dict.fromkeys(ordered)), tuple(dict.fromkeys(run)), is_over)


def _names(states: Sequence[Any]) -> Iterator[str]:
    for state in states:
        for group in state._fsdp_param_groups:
            if group._module_fqn:  # The root's is empty: all ranks run it.
                yield group._module_fqn


def who_left_out_what(ranks: Sequence[tuple[int, ModulesRun]]) -> str:
    """Return text such as ``rank 1 did not run blocks.3``, about parts that other ranks have run;
    "" if all have run the same.
    """
    texts = []
    for rank, modules in ranks:
        by_others = {name for other, x in ranks if other != rank for name in x.run}
        missing = [name for name in modules.parts if name in modules.left_out() & by_others]
        if missing:
            texts.append(f"rank {rank} did not run {some(missing)}")
    return "; ".join(texts)
