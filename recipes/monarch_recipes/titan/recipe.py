"""A run, driven from the client: `run`, the attempts that it is made of, and the ranks.

`TitanTrainer` is the actor of one rank; `training` has what it does.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, HostMesh, ProcMesh, context, endpoint
from monarch.config_file import ConfigError
from monarch.errors import ActorError
from monarch.runs import Record
from monarch.runs.attempts import TrainingAttempt, with_attempts
from monarch.runs.hold.holding import Holding
from monarch.runs.hold.run_memory import HostCopies, RunMemory
from monarch.runs.record.error_text import in_words
from monarch.runs.recover.ranks import RunFailed, Unless, ask_all
from monarch.runs.recover.recovery import BeginAgain
from monarch.runs.recover.saving import Saving
from monarch.runs.recover.witness import Witness
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.alike import Alike
from monarch_recipes.checkpoint import CheckpointError
from monarch_recipes.fingerprint import Sums, digest_of
from monarch_recipes.rendezvous import meet_at, open_meeting
from monarch_recipes.schedule import is_due
from monarch_reload import ReloadReport

from .checkpoints import Saved
from .config import TitanConfig, check_config, in_folder, section, with_values
from .training import Setup, TitanStep, Training
from .versions import titan

# The variants of `monarch recipe prepare titan-...`.
PREPARED_VARIANTS = ("tiny",)
# Imported once a host, ahead of the procs: it takes seconds.
# All ways of a run in a few steps, for `--fast-dev-run`.
FAST_DEV_RUN = (
    "training.steps=3", "checkpoint.enable=true", "checkpoint.interval=2", "validation.freq=2",
    "metrics.log_freq=1", "lr_scheduler.warmup_steps=1",
)  # fmt: skip
PRELOAD = ("torch", "monarch_recipes.titan.training")
_ANSWER_SECONDS = 60.0


class TitanTrainer(Actor):
    """One rank. `setup` may be called again, with another config, in the same process."""

    def __init__(self) -> None:
        self.training: Training | None = None
        self.stores: tuple[object, ...] = ()
        self.generation = context().generation  # of the last step

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Opens the store where the ranks meet: (host, port), or (file, 0). On rank 0 only, before
        each `setup` and `rejoin`."""
        store, host, port = open_meeting()
        # Groups that are there until then have the one before.
        self.stores = *self.stores[-1:], store
        return host, port

    @endpoint
    def setup(
        self, config: TitanConfig, store: tuple[str, int], copies: HostCopies | None = None
    ) -> Setup:
        """Build the trainer, resume: from `copies`, where all ranks have theirs. An earlier
        training is let go."""
        self.let_go()
        meet_at(*store)
        self.training = Training(config, copies)
        return self.training.setup()

    @endpoint
    def rejoin(self, store: tuple[str, int]) -> list[str]:
        """Meet in new groups, where the old ones were aborted; all else stays. Returns what has
        kept an old one."""
        meet_at(*store)
        return self.running().rejoin()

    @endpoint
    def step(self) -> TitanStep:
        """One step of training. See `save_if_due`."""
        training = self.running()
        result = training.step()
        before, self.generation = self.generation, context().generation
        fingerprint: dict[str, str] = {}
        # New code is looked at at once.
        if training.is_comparison_due(result.step) or self.generation != before:
            sums = training.sums()
            fingerprint = {group: digest_of(one) for group, one in sums.items()}
        return dataclasses.replace(result, generation=self.generation, fingerprint=fingerprint)

    @endpoint
    def fingerprint(self) -> tuple[int, dict[str, Sums]]:
        """This rank, and its fingerprint by group of ranks."""
        training = self.running()
        return training.rank, training.sums()

    @endpoint
    def take(self, rank: int) -> None:
        """Have the weights and optimizer of that rank's replica on all ranks."""
        self.running().take(rank)

    @endpoint
    def validate(self) -> float:
        """The loss on the validation data."""
        return self.running().validate()

    @endpoint
    def save_if_due(self) -> Saved:
        """Write the checkpoint that the config has after this step, if there is one."""
        return self.running().save_if_due()

    @endpoint
    def save(self) -> Saved:
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

    def __reload__(self, change: ReloadReport) -> None:
        """Have the author of an edit know what the next start would make of it."""
        if self.training is not None:
            self.training.next_start.look(change, generation=context().generation)

    def __roots__(self) -> dict[str, object]:
        """What else the state is in: see `state_copies`."""
        return {} if self.training is None else self.training.roots()

    def __state__(self) -> dict[str, Any]:
        """What a new process of this rank needs to go on from here."""
        return self.running().state(self.generation)

    def __cleanup__(self, error: Exception | None) -> None:
        self.let_go()


class Driver:
    """Drives the trainers of all ranks from the client; from a notebook as well as from `run`."""

    def __init__(
        self,
        procs: ProcMesh,
        record: Record | None = None,
        memory: RunMemory | None = None,
        save: Callable[[], object] | None = None,
    ) -> None:
        self.procs = procs
        self.trainers = procs.spawn("titan", TitanTrainer)
        self.holding: Holding | None = None
        self.alike: Alike | None = None
        if record is not None:
            self.holding = Holding(
                procs, self.trainers, record,
                rejoin=self._rejoin, alike=self._difference, memory=memory, save=save,
            )  # fmt: skip
            self.alike = Alike(record, self.holding, self._fingerprints, self._take)
        self.witnesses = (
            procs.spawn("witness", Witness) if self.holding is None else self.holding.witnesses
        )
        setup_torch_elastic_env(procs)

    def setup(
        self,
        config: TitanConfig,
        unless: Unless = lambda: False,
        copies: HostCopies | None = None,
    ) -> Setup:
        """Train by `config` from now on, in the processes that are there.

        Model, optimizer and process group are new, so any key may have changed: FSDP may become
        tensor parallelism. A checkpoint in the config's folder is resumed, unless all ranks find
        `copies` in the memory of their hosts. Raises KeyboardInterrupt as soon as `unless` is true.
        """
        check_config(config, self.procs.size())
        self.config = config
        self.seconds_of_last: float | None = None
        first = self.trainers.flatten("rank").slice(rank=0)
        # The processes may be coming up still, however long that takes.
        (store,) = self.ask(
            first.open_store, doing="meeting", seconds=math.inf, unless=unless, in_place=False
        )
        setups: list[Setup] = self.ask(
            self.trainers.setup, config, store, copies,
            doing="setting up", unless=unless, in_place=False,
        )  # fmt: skip
        setup = min(setups, key=lambda each: each.rank)
        self.step_now = setup.first_step
        self._compare()
        return setup

    def _fingerprints(self) -> dict[int, dict[str, Sums]]:
        return dict(self.trainers.fingerprint.call().get(timeout=_ANSWER_SECONDS).values())

    def _take(self, rank: int) -> None:
        self.ask(self.trainers.take, rank, doing="taking the state of one rank")

    def _difference(self) -> str:
        return "" if self.alike is None else self.alike.difference()

    def _rejoin(self) -> None:
        first = self.trainers.flatten("rank").slice(rank=0)
        store = first.open_store.call_one().get()
        kept = self.trainers.rejoin.call(store).get().values()
        if holders := sorted({holder for some in kept for holder in some}):
            raise BeginAgain(f"the process group that is gone is held by {', '.join(holders)}")

    def _compare(self) -> None:
        """Replicas that have come apart are neither trained on nor saved."""
        if self.alike is not None:
            self.alike.compare(self.step_now)

    def step(self) -> list[TitanStep]:
        """One step of training, on all ranks. Call `save_if_due` when it is written down."""
        step = self.step_now + 1
        started = time.monotonic()
        patience = patience_seconds(self.config, step, self.seconds_of_last)
        results: list[TitanStep] = self.ask(
            self.trainers.step, doing=f"step {step}", seconds=patience
        )
        self.seconds_of_last = time.monotonic() - started
        self.step_now = results[0].step
        if self.alike is not None:
            self.alike.look(self.step_now, [each.fingerprint for each in results])
        return results

    def save_if_due(self) -> Saved:
        """Save the checkpoint that the config has after the last step, if there is one."""
        self._compare()
        saved: list[Saved] = self.ask(self.trainers.save_if_due, doing="saving a checkpoint")
        return saved[0]

    def save(self) -> Path | None:
        """Save a checkpoint, where the config has them enabled. Raises RunFailed if it cannot."""
        saved = self.save_if_possible()
        if saved.failure:
            raise RunFailed(f"could not save a checkpoint: {saved.failure}")
        return saved.path

    def save_if_possible(self) -> Saved:
        """The same; what it gives says why there is none."""
        self._compare()
        saved: list[Saved] = self.ask(self.trainers.save, doing="saving a checkpoint")
        return saved[0]

    def shadow(self) -> None:
        """Have all ranks copy their state into their hosts' memory, beside the next step."""
        if self.holding is not None:
            self.holding.shadow()

    def configure(self, config: TitanConfig) -> None:
        """Take over what may change between two steps."""
        self.ask(self.trainers.configure, config, doing="changing the config")
        self.config = config

    def close(self) -> None:
        """Let go of model and process group; the processes stay."""
        self.ask(self.trainers.close, doing="closing", in_place=False)

    def ask(
        self,
        endpoint: Any,
        *args: Any,
        doing: str,
        seconds: float | None = None,
        unless: Unless | None = None,
        in_place: bool = True,
    ) -> list[Any]:
        """Returns the answers of all ranks, unless one hangs. An error that a person can mend
        becomes a RunFailed."""
        patience = seconds or float(self.config.comm.init_timeout_seconds)
        try:
            if self.holding is not None:
                return self.holding.ask(
                    endpoint, *args, doing=doing, unless=unless, in_place=in_place, seconds=patience
                )
            return ask_all(
                endpoint, *args, seconds=patience,
                witnesses=self.witnesses, doing=doing, unless=unless,
            )  # fmt: skip
        except ActorError as error:
            if isinstance(error.exception, ConfigError):
                raise RunFailed(in_words(error.exception)) from error
            if isinstance(error.exception, CheckpointError):
                raise RunFailed(str(error.exception)) from error
            raise


def patience_seconds(config: TitanConfig, step: int, seconds_of_last: float | None) -> float:
    """After how long a step hangs: sooner once there is one to compare it with."""
    validation = section(config, "validation")
    validates = validation.enable and (step % validation.freq == 0 or step == config.training.steps)
    if seconds_of_last is None or validates:
        return float(config.comm.init_timeout_seconds)
    return float(max(config.comm.train_timeout_seconds, math.ceil(5 * seconds_of_last)))


@dataclass(frozen=True)
class TitanOutcome:
    """How a run ended. Losses are NaN where they were not measured."""

    step: int
    loss: float
    validation_loss: float
    checkpoint: Path | None
    num_restarts: int


def run(config: TitanConfig, hosts: HostMesh, record: Record) -> TitanOutcome:
    """Train to the end on `hosts`, step by step, so that code can change between two steps.

    When a rank dies or hangs, all begin again in new procs: from copies in the memory of the hosts,
    where there are newer ones than the last checkpoint. When the record is stopping, a checkpoint
    is saved first; the same command then goes on from there.
    """
    check(config, len(hosts), record.procs_per_host)
    return with_attempts(
        lambda attempt: train(record.live(config), record, attempt),
        hosts, record.procs_per_host, record,
        name="titan", preload=PRELOAD, max_restarts=config.fault_tolerance.max_restarts,
        has_shards=True,
    )  # fmt: skip


def train(config: TitanConfig, record: Record, attempt: TrainingAttempt) -> TitanOutcome:
    """One attempt: to the end, until the record is stopping, or until a rank is lost."""
    saving = attempt.saving
    may_save = config.checkpoint.enable and not config.checkpoint.load_only
    driver = Driver(
        attempt.procs, record, attempt.memory, save=(lambda: save_new_steps()) if may_save else None
    )
    first_config = in_folder(config, record.folder)
    if attempt.saved_step is not None and config.checkpoint.load_step != -1:
        # Once this run has saved, it goes on from there, whatever it was to begin with; not by the
        # step, as a host may be gone, and what it saved with it.
        first_config = with_values(first_config, checkpoint={"load_step": -1})
    # A run that stops now has learned nothing yet, and need not wait.
    setup = driver.setup(
        first_config, unless=lambda: record.is_stopping, copies=attempt.newest_copies()
    )
    record.message(
        f"{titan.model_text(config)}: {setup.num_parameters:,} parameters, "
        f"{setup.layout}, on {setup.device}; ready in {setup.seconds:.1f} s"
    )
    if setup.why_not_nccl:
        record.message(setup.why_not_nccl)
    saving.resumed(
        setup.resumed_from, setup.first_step, setup.notes, is_from_memory=setup.is_from_memory
    )

    def save_new_steps() -> None:
        now = driver.step_now
        if now not in (setup.first_step, saving.saved_step):
            tell_saved(saving, now, driver.save_if_possible())

    step = setup.first_step
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
        attempt.step_made(step)
        slowest = min(each.generation for each in results)
        if values or slowest != generation:
            generation = slowest
            record.metrics(step, setup.num_steps, {**values, "generation": generation})
        if not math.isfinite(values.get("loss", 0.0)):
            raise RunFailed(
                f"the loss of step {step} is {values['loss']}: training on would be of no use. "
                f"A lower optimizer.lr may help. The last checkpoint: {saving.latest or 'none'}"
            )
        last.update((key, values[key]) for key in last if key in values)
        # Not before the row is there: a run that goes on from the checkpoint will not write it.
        if any(each.is_save_due for each in results):
            tell_saved(saving, step, driver.save_if_due(), must=result.is_last)
        elif record.take_save_wanted() and (path := driver.save()):
            saving.saved(step, path)
        if result.is_last:
            break
        if is_due(step, config.fault_tolerance.shadow_every):
            driver.shadow()
    if step < setup.num_steps:
        if step > setup.first_step and (path := driver.save()):
            saving.saved(step, path)
        if not record.is_stopping:
            record.message(f"the data has ended after step {step}")
    driver.close()
    return TitanOutcome(
        step, last["loss"], last["validation_loss"], saving.latest, attempt.num_restarts
    )


def tell_saved(saving: Saving, step: int, saved: Saved, *, must: bool = False) -> None:
    """Have the record know of a save after ``step``, or of its failure, if there was one."""
    if saved.path:
        if saved.step != saving.saved_step:
            saving.saved(saved.step, saved.path)
    elif saved.failure:
        saving.failed(step, saved.failure, must=must)


def check(config: TitanConfig, num_hosts: int, procs_per_host: int) -> None:
    """Whether the config fits so many procs; raises ConfigError before any is started."""
    check_config(config, num_hosts * procs_per_host)
