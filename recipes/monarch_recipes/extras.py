"""The config's table `extras`: settings that every recipe has besides those of its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from monarch.config_file import check_range, live
from monarch.runs.record.loggers import check_loggers


@dataclass(frozen=True)
class Extras:
    """The table `extras` of a config. Only `patience` changes what is learned."""

    # Where metrics go besides metrics.jsonl: "tensorboard", "wandb", "mlflow".
    log_to: tuple[str, ...] = ()
    wandb_project: str | None = None  # "none": WANDB_PROJECT of the environment, else "monarch"
    wandb_entity: str | None = None  # "none": WANDB_ENTITY, else your own

    # The best evaluation, by a held-out value.
    best_metric: str = "loss"
    best_is: Literal["lowest", "highest"] = "lowest"
    keep_best: bool = False  # also keep its checkpoint, in checkpoints/best
    patience: int = live(0)  # the run ends after so many evaluations without a better one; 0 never

    # A copy of the state in the host's memory each so many steps, made while a step runs; 0 is
    # none. A death, also of all groups of fault_tolerant, then costs no more steps than that.
    shadow_every: int = live(0)

    # torch.profiler, into profile/ of the run's folder.
    profile_step: int = 0  # the first step that is profiled; 0 is none
    profile_num_steps: int = 3

    def __post_init__(self) -> None:
        check_range(self, "patience", "profile_step", "shadow_every", least=0)
        check_range(self, "profile_num_steps", least=1)
        check_loggers(self.log_to)
