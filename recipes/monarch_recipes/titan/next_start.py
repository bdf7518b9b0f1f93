"""Checks at each edit of a TorchTitan model whether the next start of the run would still fit."""

from __future__ import annotations

import torch
from torch import nn

from monarch.runs.record.error_text import in_words
from monarch_recipes.next_start import Builders, NextStart
from monarch_reload import ReloadReport, at_start

from .config import TitanConfig
from .versions import titan
from .versions.engine import Engine


class TitanNextStart:
    """The next start of a trainer with ``config``.

    The functions with which TorchTitan builds it are marked as code that runs only at a start.
    """

    def __init__(self, config: TitanConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._sizes = titan.sizes(config)
        self._next_start = NextStart(self._builders().names)

    def look(self, change: ReloadReport, *, generation: int) -> None:
        """Check the next start after an edit, and warn the edit's author of what changes.

        A pipeline stage is not compared, because it has only a part of the model.
        """
        try:
            builders, sizes = self._builders(), titan.sizes(self._config)
        except Exception as error:
            change.warn(
                f"the next start will fail: {in_words(error)}. This run goes on with what it has",
                for_next_start=True,
            )
            return
        if sizes != self._sizes:
            self._sizes = sizes
            model = titan.model_text(self._config)
            change.at_start.append(f"the sizes of {model}")
            change.warn(
                f"the sizes of {model} count from the next start of the run",
                for_next_start=True,
            )
        parts, optimizers = self._engine.model_parts, self._engine.optimizers
        is_whole = len(parts) == 1 and not self._engine.parallel_dims.pp_enabled
        self._next_start.look(
            change, builders, parts[0] if is_whole else None, optimizers[0], generation=generation
        )

    def _builders(self) -> Builders:
        others = tuple(titan.start_functions(self._config))
        for function in others:
            at_start(function)
        return Builders(self._config, titan.build_model, self._optimizer, others)

    def _optimizer(self, config: TitanConfig, model: nn.Module) -> torch.optim.Optimizer:
        return titan.build_optimizer(config, model, self._engine.parallel_dims)
