"""The effect of an edit of a TorchTitan model on the next start: told at the push, and tried."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn

from monarch.runs.error_text import in_words
from monarch_recipes.next_start import Builders, NextStart
from monarch_reload import ReloadReport, at_start

from .api import DATASETS
from .config import TitanConfig, look_up_model, with_values


class TitanNextStart:
    """The next start of a trainer that is set up by ``config``. The code that its `TrainSpec`
    builds it with is marked as code that runs when a run begins."""

    def __init__(self, config: TitanConfig, trainer: Any) -> None:
        self._config = config
        self._trainer = trainer
        self._sizes = _sizes_of(config)
        self._next_start = NextStart(self._builders().names)

    def look(self, change: ReloadReport, *, generation: int) -> None:
        """Have the author of an edit know what the next start would make of it.

        A stage of a pipeline has a part of the model only, which is not compared.
        """
        try:
            builders, sizes = self._builders(), _sizes_of(self._config)
        except Exception as error:
            change.warn(
                f"the next start will fail: {in_words(error)}. This run goes on with what it has",
                for_next_start=True,
            )
            return
        if sizes != self._sizes:
            self._sizes = sizes
            model = self._config.model
            change.at_start.append(f"model.flavor={model.flavor}")
            change.warn(
                f"the sizes of {model.name} {model.flavor} count from the next start of the run",
                for_next_start=True,
            )
        parts, optimizers = self._trainer.model_parts, self._trainer.optimizers.optimizers
        self._next_start.look(
            change, builders, parts[0] if len(parts) == 1 and not self._has_stages else None,
            optimizers[0], generation=generation,
        )  # fmt: skip

    @property
    def _has_stages(self) -> bool:
        return bool(self._trainer.parallel_dims.pp_enabled)

    def _builders(self) -> Builders:
        others = tuple(_run_once(self._config))
        for one in others:
            at_start(one)
        return Builders(self._config, _model, self._optimizer, others)

    def _optimizer(self, config: TitanConfig, model: nn.Module) -> torch.optim.Optimizer:
        # Fused ones want tensors with storage.
        plain = with_values(config, optimizer={"implementation": "for-loop"}).optimizer
        build = look_up_model(config).build_optimizers_fn
        made: torch.optim.Optimizer
        [made] = build([model], plain, self._trainer.parallel_dims).optimizers
        return made


def _sizes_of(config: TitanConfig) -> Any:
    sizes = copy.deepcopy(look_up_model(config).model_args[config.model.flavor])
    sizes.update_from_config(config)
    return sizes


def _model(config: TitanConfig) -> nn.Module:
    made: nn.Module = look_up_model(config).model_cls(_sizes_of(config))
    return made


def _run_once(config: TitanConfig) -> Iterator[Callable[..., Any]]:
    """Yields the functions that the trainer calls while it is made, and never again."""
    spec = look_up_model(config)
    found = [
        spec.parallelize_fn, spec.pipelining_fn, spec.build_optimizers_fn,
        spec.build_lr_schedulers_fn, spec.build_dataloader_fn, spec.build_tokenizer_fn,
        spec.build_loss_fn, spec.build_validator_fn, spec.build_metrics_processor_fn,
        spec.model_cls.init_weights,
    ]  # fmt: skip
    for name in (config.training.dataset, config.validation.dataset):
        if name in DATASETS:
            found.append(DATASETS[name].loader)
    for one in found:
        whole = getattr(one, "func", one)  # of a partial
        if isinstance(whole, FunctionType):
            yield whole
