"""A task's own state besides model and optimizer: an average of the weights (EMA), a replay buffer.

Checkpoints contain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from monarch.config_file import ConfigError
from monarch_recipes.task import own_part


class ExtraState:
    """The objects that the task's ``build_extra_state(config, model)`` returned, by name.

    Raises ConfigError if an object lacks ``state_dict`` or ``load_state_dict``. A task without
    ``build_extra_state`` has no such objects.
    """

    def __init__(self, task: str | None, config: Any, model: nn.Module) -> None:
        self._task = task
        build = own_part(task, "build_extra_state")
        self.objects: dict[str, Any] = {} if build is None else dict(build(config, model))
        for name, value in self.objects.items():
            if not all(hasattr(value, method) for method in ("state_dict", "load_state_dict")):
                raise ConfigError(
                    f"build_extra_state gave {name!r}, a {type(value).__name__}: give it "
                    "state_dict and load_state_dict, or it could not be saved"
                )

    def after_step(self, model: nn.Module) -> None:
        """Call the task's ``after_step``, if it has one, for example to average the weights."""
        if (after := own_part(self._task, "after_step")) is not None:
            after(model, self.objects)

    def evaluated(self, model: nn.Module) -> nn.Module:
        """Return the model to evaluate: the choice of the task's ``model_to_evaluate``, else
        ``model``.
        """
        choose = own_part(self._task, "model_to_evaluate")
        chosen: nn.Module = model if choose is None else choose(model, self.objects)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the extra objects, for a checkpoint."""
        return {name: value.state_dict() for name, value in self.objects.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load each object that has a saved state; the other objects stay as they were built."""
        for name, value in self.objects.items():
            if name in state:
                value.load_state_dict(state[name])

    def lacking(self, state: Mapping[str, Any]) -> list[str]:
        """Return the names of the objects that have no state in ``state``."""
        return [name for name in self.objects if name not in state]

    def take_from(self, rank: int) -> None:
        """Copy the state of ``rank`` to all ranks, which must call this together."""
        theirs: list[Any] = [self.state_dict()]
        dist.broadcast_object_list(theirs, src=rank)
        if dist.get_rank() != rank:
            self.load_state_dict(theirs[0])


def refuse_extra_state(task: str | None, recipe: str) -> None:
    """Raise ConfigError if the task has extra state, for a recipe that does not save it."""
    for name in ("build_extra_state", "after_step", "model_to_evaluate"):
        if own_part(task, name) is not None:
            raise ConfigError(
                f"{task} has {name}, which {recipe} does not call: its groups heal from each "
                "other by model and optimizer alone. Train with ddp, or leave it out",
                key="task",
            )
