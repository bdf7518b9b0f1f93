"""Pre-training with TorchTitan's own trainer: FSDP, tensor and pipeline parallelism from its TOML.

    monarch recipe prepare titan-tiny
    monarch run titan --config titan-tiny/titan.toml
    monarch run titan --config titan-tiny/titan.toml parallelism.tensor_parallel_degree=2

The config file is TorchTitan's, and so are the keys. On two CPU cores the small Llama that is
prepared learns from half a megabyte of English; with GPUs the same commands use NCCL.
`titan_training` has what one rank does.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, ActorMesh, ProcMesh, context, endpoint
from monarch.runs import Record
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.titan_config import TitanConfig, check_config, in_folder
from monarch_recipes.titan_plan import plan
from monarch_recipes.titan_tiny import prepare
from monarch_recipes.titan_training import Setup, StepResult, Training

__all__ = ["PRELOAD", "Outcome", "TitanTrainer", "plan", "prepare", "rebuild", "run"]

# Imported once a host, ahead of the procs: it takes seconds.
PRELOAD = ("torch", "monarch_recipes.titan_training")


class TitanTrainer(Actor):
    """One rank. `setup` may be called again, with another config, in the same process."""

    def __init__(self) -> None:
        self.training: Training | None = None

    @endpoint
    def setup(self, config: TitanConfig) -> Setup:
        """Build the trainer, resume. What was there before is let go."""
        self.let_go()
        self.training = Training(config)
        return self.training.setup()

    @endpoint
    def step(self) -> StepResult:
        """One step of training."""
        result = self.running().step()
        return dataclasses.replace(result, generation=context().generation)

    @endpoint
    def validate(self) -> float:
        """The loss on the validation data."""
        return self.running().validate()

    @endpoint
    def save(self) -> Path | None:
        """Write a checkpoint, and say where."""
        return self.running().save()

    @endpoint
    def configure(self, config: TitanConfig) -> None:
        """Take over what may change between two steps."""
        self.running().configure(config)

    @endpoint
    def close(self) -> None:
        """Let go of model and process group; the process stays."""
        self.let_go()

    def running(self) -> Training:
        if self.training is None:
            raise RuntimeError("call setup(config) on the trainers first")
        return self.training

    def let_go(self) -> None:
        training, self.training = self.training, None
        if training is not None:
            training.close()

    def __cleanup__(self, error: Exception | None) -> None:
        self.let_go()


@dataclass(frozen=True)
class Outcome:
    """How a run ended. Losses are NaN where none was measured."""

    step: int
    loss: float
    validation_loss: float
    checkpoint: Path | None


def rebuild(trainers: ActorMesh[TitanTrainer], procs: ProcMesh, config: TitanConfig) -> Setup:
    """Make the trainers train by `config` from now on, in the processes that are there.

    Model, optimizer and process group are new, so any key may have changed: FSDP may become TP.
    A checkpoint in the config's folder is resumed.
    """
    check_config(config, procs.size())
    setup_torch_elastic_env(procs)
    setup: Setup = trainers.setup.call(config).get().get(0)
    return setup


def run(config: TitanConfig, procs: ProcMesh, record: Record) -> Outcome:
    """Train to the end on `procs`, step by step, so that code can change between two steps."""
    check_config(config, procs.size())
    config = in_folder(config, record.folder)
    trainers: Any = procs.spawn("titan", TitanTrainer)
    setup = rebuild(trainers, procs, config)
    record.message(
        f"{config.model.name} {config.model.flavor}: {setup.num_parameters:,} parameters, "
        f"{setup.layout}, on {procs.size()} ranks ({setup.device}); ready in {setup.seconds:.1f} s"
    )
    for note in setup.notes:
        record.event("note", note)
    if setup.resumed_from:
        record.event("resumed", f"resumed from {setup.resumed_from}, after step {setup.first_step}")

    step, saved = setup.first_step, setup.resumed_from
    last = {"loss": math.nan, "validation_loss": math.nan}
    while step < setup.num_steps and not record.is_stopping:
        wanted = record.live(config)
        if wanted != config:
            trainers.configure.call(wanted).get()
            config = wanted
        results = trainers.step.call().get()
        result: StepResult = results.get(setup.metrics_rank)
        step = result.step
        if result.values:
            record.metrics(
                step, setup.num_steps, {**result.values, "generation": result.generation}
            )
            last.update((key, result.values[key]) for key in last if key in result.values)
        if result.saved:
            saved = result.saved
            record.event("saved", f"saved {saved}", step=step)
        if math.isnan(last["loss"]) and "loss" in result.values:
            raise FloatingPointError(
                f"the loss of step {step} is NaN: training it further is of no use. "
                f"The last checkpoint is {saved or 'none'}; try a lower optimizer.lr"
            )
        if result.is_last:
            break
    if record.is_stopping and step < setup.num_steps:
        saved = trainers.save.call().get().get(0)
        where = f"saved {saved}" if saved else "nothing is saved, as checkpoint.enable is false"
        record.event(
            "saved" if saved else "stopped", f"stopped after step {step}: {where}", step=step
        )
    trainers.close.call().get()
    trainers.stop().get()
    return Outcome(step, last["loss"], last["validation_loss"], saved)
