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

from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.config_file import ConfigError
from monarch.errors import ActorError
from monarch.runs import Record
from monarch.runs.ranks import RunFailed, ask_all
from monarch.runs.recovery import RanksLost, noticing_losses
from monarch.runs.witness import Witness
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.checkpoint import CheckpointError
from monarch_recipes.rendezvous import meet_at, open_store
from monarch_recipes.titan_config import TitanConfig, check_config, in_folder
from monarch_recipes.titan_plan import plan
from monarch_recipes.titan_tiny import prepare
from monarch_recipes.titan_training import Setup, StepResult, Training

__all__ = ["PRELOAD", "Driver", "Outcome", "TitanTrainer", "check", "plan", "prepare", "run"]

# Imported once a host, ahead of the procs: it takes seconds.
PRELOAD = ("torch", "monarch_recipes.titan_training")


class TitanTrainer(Actor):
    """One rank. `setup` may be called again, with another config, in the same process."""

    def __init__(self) -> None:
        self.training: Training | None = None

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Where the ranks meet. For rank 0 only, and before each `setup`."""
        self.let_go()
        self.store, host, port = open_store()
        return host, port

    @endpoint
    def setup(self, config: TitanConfig, store: tuple[str, int]) -> Setup:
        """Build the trainer, resume. What was there before is let go."""
        self.let_go()
        meet_at(*store)
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


class Driver:
    """Drives the trainers of all ranks from the client; from a notebook as well as from `run`."""

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.witnesses = procs.spawn("witness", Witness)
        self.trainers = procs.spawn("titan", TitanTrainer)
        setup_torch_elastic_env(procs)

    def setup(self, config: TitanConfig) -> Setup:
        """Train by `config` from now on, in the processes that are there.

        Model, optimizer and process group are new, so any key may have changed: FSDP may become
        tensor parallelism. A checkpoint in the config's folder is resumed.
        """
        check_config(config, self.procs.size())
        self.config = config
        store = self.trainers.flatten("rank").slice(rank=0).open_store.call_one().get()
        return self.of_first(self.ask(self.trainers.setup, config, store, doing="setting up"))

    def step(self) -> list[StepResult]:
        """One step of training, on all ranks."""
        return self.ask(self.trainers.step, doing="a step")

    def save(self) -> Path | None:
        """Save a checkpoint, where the config has them enabled."""
        path: Path | None = self.ask(self.trainers.save, doing="saving a checkpoint")[0]
        return path

    def configure(self, config: TitanConfig) -> None:
        """Take over what may change between two steps."""
        self.ask(self.trainers.configure, config, doing="changing the config")

    def close(self) -> None:
        """Let go of model and process group; the processes stay."""
        self.ask(self.trainers.close, doing="closing")

    def ask(self, endpoint: Any, *args: Any, doing: str) -> list[Any]:
        """What all ranks answer, unless one hangs. What a person can mend is a RunFailed."""
        seconds = float(self.config.comm.init_timeout_seconds)
        try:
            return ask_all(endpoint, *args, seconds=seconds, witnesses=self.witnesses, doing=doing)
        except ActorError as error:
            cause = error.exception
            if isinstance(cause, ConfigError) and cause.key:
                raise RunFailed(f"'{cause.key}' {cause}") from error
            if isinstance(cause, (ConfigError, CheckpointError)):
                raise RunFailed(str(cause)) from error
            raise

    @staticmethod
    def of_first(answers: list[Setup]) -> Setup:
        return min(answers, key=lambda answer: answer.rank)


def run(config: TitanConfig, procs: ProcMesh, record: Record) -> Outcome:
    """Train to the end on `procs`, step by step, so that code can change between two steps.

    When the record is stopping, a checkpoint is saved first; the same command then goes on from
    there. So it does after a rank has died.
    """
    try:
        with noticing_losses():
            return train(config, Driver(procs), record)
    except RanksLost as lost:
        raise RunFailed(f"{lost}\nThe same command goes on from the last checkpoint") from lost


def train(config: TitanConfig, driver: Driver, record: Record) -> Outcome:
    setup = driver.setup(in_folder(config, record.folder))
    tell(setup, config, record)
    step, saved = setup.first_step, setup.resumed_from
    last = {"loss": math.nan, "validation_loss": math.nan}
    generation = -1
    while step < setup.num_steps and not record.is_stopping:
        wanted = record.live(config)
        if wanted != config:
            driver.configure(wanted)
            config = wanted
        results = driver.step()
        result = next(each for each in results if each.rank == setup.metrics_rank)
        step, values = result.step, dict(result.values)
        slowest = min(each.generation for each in results)
        if values or slowest != generation:
            generation = slowest
            record.metrics(step, setup.num_steps, {**values, "generation": generation})
        if math.isnan(values.get("loss", 0.0)):
            raise RunFailed(
                f"the loss of step {step} is NaN: training on would be of no use. A lower "
                f"optimizer.lr may help. The last checkpoint: {saved or 'none'}"
            )
        last.update((key, values[key]) for key in last if key in values)
        if result.saved:
            saved = result.saved
            record.event("saved", f"saved {saved}", step=step, path=str(saved))
        if result.is_last:
            break
    if step < setup.num_steps and record.is_stopping:
        saved = driver.save() or saved
        record.message(f"stopped after step {step}: the last checkpoint is {saved or 'none'}")
    driver.close()
    return Outcome(step, last["loss"], last["validation_loss"], saved)


def tell(setup: Setup, config: TitanConfig, record: Record) -> None:
    """What the run is, and where it goes on."""
    record.message(
        f"{config.model.name} {config.model.flavor}: {setup.num_parameters:,} parameters, "
        f"{setup.layout}, on {setup.device}; ready in {setup.seconds:.1f} s"
    )
    for note in setup.notes:
        record.event("skipped", note)
    if setup.resumed_from:
        text = f"resumed from {setup.resumed_from}, after step {setup.first_step}"
        record.event("resumed", text, step=setup.first_step)


def check(config: TitanConfig, num_hosts: int, procs_per_host: int) -> None:
    """Whether the config fits so many procs; raises ConfigError before any is started."""
    check_config(config, num_hosts * procs_per_host)
