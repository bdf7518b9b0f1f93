"""Finds out whether a restart with the edited code could still load the run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from monarch_recipes.checkpoint import optimizer_difference
from monarch_recipes.task import part
from monarch_reload import ReloadReport, at_start

# A model that cannot be made on the meta device is made on the CPU, up to this size.
_MOST_PARAMETERS = 50_000_000


@dataclass(frozen=True)
class Builders:
    """The functions that make the model and the optimizer at a start, with the code as it is now.

    ``others`` are further functions that a start calls.
    """

    config: Any
    model: Callable[[Any], nn.Module]
    optimizer: Callable[[Any, nn.Module], torch.optim.Optimizer]
    others: tuple[Callable[..., Any], ...] = ()

    @classmethod
    def of(
        cls,
        config: Any,
        model: Callable[[Any], nn.Module],
        optimizer: Callable[[Any, nn.Module], torch.optim.Optimizer],
    ) -> Builders:
        """Return the builders: functions of the config's task, or those given if it has none.

        The task's functions are found by the names of ``model`` and ``optimizer``.
        """
        task = config.task
        return cls(config, at_start(part(task, model)), at_start(part(task, optimizer)))

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of all functions."""
        functions = (self.model, self.optimizer, *self.others)
        return tuple(f"{each.__module__}.{each.__qualname__}" for each in functions)


@dataclass
class NextStart:
    """Remembers whether a start with the present code would rebuild the model that trains now.

    An edit of ``built_by``, the functions that a start calls, has no effect on a running process.
    ``unfit_since`` is the first generation of code whose start would make another model or
    optimizer; 0 if a start fits. Save it in checkpoints.
    """

    built_by: tuple[str, ...]
    unfit_since: int = 0

    def look(
        self,
        change: ReloadReport,
        builders: Builders,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer,
        *,
        generation: int,
    ) -> None:
        """Check after an edit whether a start still fits; if not, warn the author of the edit.

        ``generation`` is that of the edit. Without a ``model`` nothing is compared, because this
        process does not have the whole model.
        """
        for name in builders.names:
            # A function that replaces another one: the task now has a `build_model`, for example.
            if name not in self.built_by and name not in change.at_start:
                change.at_start.append(name)
                change.counts_from_next_start(name)
        if not change.at_start:
            return
        self.built_by = builders.names
        if model is None:
            return
        fits = tell_of_next_start(
            change,
            lambda: builders.model(builders.config),
            lambda new: builders.optimizer(builders.config, new),
            model,
            optimizer,
        )
        self.unfit_since = 0 if fits else min(self.unfit_since or generation, generation)


def tell_of_next_start(
    change: ReloadReport,
    build_model: Callable[[], nn.Module],
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> bool:
    """Return whether a newly built model and optimizer match the given ones.

    If not, warn the author. They are built without data. Returns True if the edit changed no
    function that a start calls.
    """
    if not change.at_start:
        return True
    try:
        new = _built(build_model, sum(parameter.numel() for parameter in model.parameters()))
        reason = "" if new is None else difference_of(new, model)
        if new is not None and not reason:
            after = build_optimizer(new).state_dict()
            if lacking := optimizer_difference(optimizer.state_dict(), after):
                reason = f"what they have of the optimizer is of another kind: {lacking}"
    except Exception as error:
        change.warn(
            f"the next start will fail: building it anew raises {type(error).__name__}: {error}. "
            "This run goes on with the model and optimizer that it has",
            for_next_start=True,
        )
        return False
    if reason:
        change.warn(
            f"the next start cannot go on from this run's checkpoints: {reason}. This run goes on "
            "with what it has; when a rank is lost it waits for a fix. `monarch sync rollback` "
            "goes back",
            for_next_start=True,
        )
    return not reason


def difference_of(new: nn.Module, old: nn.Module) -> str:
    """Return the first name or shape in which two models differ, as text; "" if they do not."""
    new_shapes, old_shapes = _shapes(new), _shapes(old)
    for name, shape in new_shapes.items():
        if name not in old_shapes:
            return f"the new model has {name!r}, which this one has not"
        if old_shapes[name] != shape:
            return (
                f"{name!r} has the shape {shape} in the new model, and {old_shapes[name]} in this "
                "one"
            )
    gone = next((name for name in old_shapes if name not in new_shapes), None)
    return "" if gone is None else f"the new model has no {gone!r}"


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors, by name without the parts that wrappers add."""
    shapes = {}
    for name, value in model.state_dict().items():
        for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
            name = name.replace(wrapper, "")
        if isinstance(value, torch.Tensor):
            shapes[name] = tuple(value.shape)
    return shapes


def _built(build: Callable[[], nn.Module], num_parameters: int) -> nn.Module | None:
    """Return a model of the new code, on the meta device if possible, and else on the CPU.

    Returns None if it needs the CPU and ``num_parameters`` is too large for that. The run's random
    numbers are not used.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build()
        except (NotImplementedError, RuntimeError):  # It needs values, which meta tensors lack.
            return build() if num_parameters <= _MOST_PARAMETERS else None
