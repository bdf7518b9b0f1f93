"""A training of TorchTitan on one rank, driven step by step: the part that 0.2 and 0.3 share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Engine:
    """Makes the single steps of TorchTitan's `train()`, which is one call from first to last step.

    This should fit TorchTitan 0.4, as far as that is announced. Its `TrainingEngine` has the
    trainer's parts, and leaves the loop to others: `train_step`, `batches`, `validate` and
    `profilers` are one call each here, and everything else is an attribute. Version 0.4 could not
    be installed when this was written, so nothing was run with it; its budgets of tokens instead of
    batch sizes (`num_tokens_per_...`), its data loaders and its `checkpointer` section need an
    adapter of their own.
    """

    def __init__(self, trainer: Any) -> None:
        #: TorchTitan's trainer.
        self.trainer = trainer

    @property
    def step(self) -> int:
        """The number of steps made."""
        return int(self.trainer.step)

    @step.setter
    def step(self, step: int) -> None:
        self.trainer.step = step

    @property
    def tokens_seen(self) -> int:
        return int(self.trainer.ntokens_seen)

    @tokens_seen.setter
    def tokens_seen(self, number: int) -> None:
        self.trainer.ntokens_seen = number

    @property
    def device(self) -> Any:
        return self.trainer.device

    @property
    def model_parts(self) -> list[nn.Module]:
        parts: list[nn.Module] = self.trainer.model_parts
        return parts

    @property
    def optimizers(self) -> list[Optimizer]:
        optimizers: list[Optimizer] = self.trainer.optimizers.optimizers
        return optimizers

    @property
    def schedules(self) -> Any:
        """The learning rate schedules, with `state_dict` and `load_state_dict`."""
        return self.trainer.lr_schedulers

    @property
    def checkpointer(self) -> Any:
        return self.trainer.checkpointer

    @property
    def dataloader(self) -> Any:
        return self.trainer.dataloader

    @property
    def parallel_dims(self) -> Any:
        return self.trainer.parallel_dims

    @property
    def num_micro_batches(self) -> int:
        return int(self.trainer.gradient_accumulation_steps)

    @property
    def metrics_logger(self) -> Any:
        return self.trainer.metrics_processor.logger

    @metrics_logger.setter
    def metrics_logger(self, logger: Any) -> None:
        self.trainer.metrics_processor.logger = logger

    @property
    def metrics_rank(self) -> int:
        """The rank that knows the loss."""
        raise NotImplementedError

    def batches(self) -> Iterator[Any]:
        """Return an iterator over batches, from the loader's position.

        At the end of the data it raises `DataEnded`, or just ends.
        """
        batches: Iterator[Any] = self.trainer.batch_generator(self.trainer.dataloader)
        return batches

    def train_step(self, batches: Iterator[Any]) -> None:
        """Make one optimizer step, number `step`.

        Metrics go to the logger. May raise `DataEnded`.
        """
        self.trainer.gc_handler.run(self.trainer.step)
        self.trainer.train_step(batches)

    def should_validate(self) -> bool:
        """Return whether the model should be validated after this step."""
        return bool(self.trainer.validator.should_validate(self.trainer.step))

    def validate(self) -> None:
        self.trainer.validator.validate(self.trainer.model_parts, self.trainer.step)

    def profilers(self) -> list[AbstractContextManager[Any]]:
        """Return contexts to keep around all steps.

        Each yields an object with `step()`, or None.
        """
        raise NotImplementedError

    def set_timeouts(self, timeout: timedelta) -> None:
        """Set the timeout of all process groups from now on."""
        raise NotImplementedError

    def configure(self, config: Any) -> None:
        """Apply TorchTitan's live keys of a config."""
        if self.trainer.checkpointer.enable:
            self.trainer.checkpointer.interval = config.checkpoint.interval
        rate, decay = config.optimizer.lr, config.optimizer.weight_decay
        for optimizer, schedule in zip(
            self.optimizers, self.trainer.lr_schedulers.schedulers, strict=True
        ):
            if rate is not None:
                schedule.base_lrs = [rate] * len(optimizer.param_groups)
                rates = [rate * factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
                schedule._last_lr = rates
                for group, group_rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"], group["initial_lr"] = group_rate, rate
            if decay is not None:
                for group in optimizer.param_groups:
                    group["weight_decay"] = decay

    def roots(self) -> dict[str, object]:
        """Return the objects that contain the state of the training, by name."""
        trainer = self.trainer
        roots = {"trainer": trainer, "metrics": trainer.metrics_processor}
        if hasattr(trainer, "validator"):
            roots["validator"] = trainer.validator
        return roots

    def close(self) -> None:
        self.trainer.close()
