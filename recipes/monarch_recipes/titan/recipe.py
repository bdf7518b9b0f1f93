"""Drives a run from the client: `run`, its attempts, and the actors of the ranks.

`TitanTrainer` is the actor of one rank; `training` has its work.
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
# For `--fast-dev-run`: a few steps that also validate and save.
FAST_DEV_RUN = (
    "training.steps=3", "checkpoint.enable=true", "checkpoint.interval=2", "validation.freq=2",
    "metrics.log_freq=1", "lr_scheduler.warmup_steps=1",
)  # fmt: skip
# Each host imports these once, and forks its procs afterwards: the import takes seconds.
PRELOAD = ("torch", "monarch_recipes.titan.training")
_ANSWER_SECONDS = 60.0


class TitanTrainer(Actor):
    """The actor of one rank.

    `setup` may be called again with another config, in the same process.
    """

    def __init__(self) -> None:
        self.training: Training | None = None
        self.stores: tuple[object, ...] = ()
        self.generation = context().generation  # of the last step

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Open the store where the ranks meet; return (host, port), or (file, 0).

        Call it on rank 0 only, before each `setup` and `rejoin`.
        """
        store, host, port = open_meeting()
        # Keep the store before, which the present groups still use.
        self.stores = *self.stores[-1:], store
        return host, port

    @endpoint
    def setup(
        self, config: TitanConfig, store: tuple[str, int], copies: HostCopies | None = None
    ) -> Setup:
        """Build the trainer and resume. An earlier training in this process is closed.

        With `copies` it resumes from these, if all ranks have theirs, else from a checkpoint.
        """
        self.let_go()
        meet_at(*store)
        self.training = Training(config, copies)
        return self.training.setup()

    @endpoint
    def rejoin(self, store: tuple[str, int]) -> list[str]:
        """Make new process groups after the old ones were aborted. The training and its state stay.

        Returns a text for each holder of an old group that could not be changed.
        """
        meet_at(*store)
        return self.running().rejoin()

    @endpoint
    def step(self) -> TitanStep:
        """Make one step of training. Call `save_if_due` after it is recorded."""
        training = self.running()
        result = training.step()
        old_generation, self.generation = self.generation, context().generation
        fingerprint: dict[str, str] = {}
        # New code is compared after its first step.
        if training.is_comparison_due(result.step) or self.generation != old_generation:
            by_group = training.sums()
            fingerprint = {group: digest_of(sums) for group, sums in by_group.items()}
        return dataclasses.replace(result, generation=self.generation, fingerprint=fingerprint)

    @endpoint
    def fingerprint(self) -> tuple[int, dict[str, Sums]]:
        """Return this rank's number, and its fingerprint for each group of ranks that should be
        equal.
        """
        training = self.running()
        return training.rank, training.sums()

    @endpoint
    def take(self, rank: int) -> None:
        """Copy the weights and the optimizer state of ``rank``'s replica to all ranks."""
        self.running().take(rank)

    @endpoint
    def validate(self) -> float:
        """Return the loss on the validation data; NaN if the config has none."""
        return self.running().validate()

    @endpoint
    def save_if_due(self) -> Saved:
        """Save a checkpoint of the present step if the config has one after it.

        Otherwise return a save that has finished in the background; empty if there is none.
        """
        return self.running().save_if_due()

    @endpoint
    def save(self) -> Saved:
        """Save a checkpoint to resume from, unless the config has checkpoints disabled."""
        return self.running().save()

    @endpoint
    def configure(self, config: TitanConfig) -> None:
        """Apply the live keys of a config."""
        self.running().configure(config)

    @endpoint
    def close(self) -> None:
        """Close the training: free the model, and leave the process group. The process stays."""
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
        """Warn the author of an edit of what it changes at the next start."""
        if self.training is not None:
            self.training.next_start.look(change, generation=context().generation)

    def __roots__(self) -> dict[str, object]:
        """Return further objects that contain state of this actor; see `state_copies`."""
        return {} if self.training is None else self.training.roots()

    def __state__(self) -> dict[str, Any]:
        """Return everything that a new process of this rank needs to continue from here."""
        return self.running().state(self.generation)

    def __cleanup__(self, error: Exception | None) -> None:
        self.let_go()


class Driver:
    """Drives the trainers of all ranks from the client, in a notebook or in `run`.

    With a ``record``, errors hold the run, and ranks are compared.
    """

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
                procs,
                self.trainers,
                record,
                rejoin=self._rejoin,
                alike=lambda: alike.difference(),
                memory=memory,
                save=save,
            )
            self.alike = alike = Alike(record, self.holding, self._fingerprints, self._take)
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
        """Begin to train with `config` in the existing processes; return rank 0's result.

        Model, optimizer and process group are new, so any key may have changed: FSDP may become
        tensor parallelism. A checkpoint in the config's folder is resumed, unless all ranks find
        `copies` in the memory of their hosts. Raises KeyboardInterrupt as soon as `unless` returns
        true.
        """
        check_config(config, self.procs.size())
        self.config = config
        self.seconds_of_last: float | None = None
        first = self.trainers.flatten("rank").slice(rank=0)
        # The processes may still be starting, however long that takes.
        (store,) = self.ask(
            first.open_store, doing="meeting", seconds=math.inf, unless=unless, in_place=False
        )
        setups: list[Setup] = self.ask(
            self.trainers.setup,
            config,
            store,
            copies,
            doing="setting up",
            unless=unless,
            in_place=False,
        )
        setup = min(setups, key=lambda setup: setup.rank)
        self.step_now = setup.first_step
        self._compare()
        return setup

    def _fingerprints(self) -> dict[int, dict[str, Sums]]:
        return dict(self.trainers.fingerprint.call().get(timeout=_ANSWER_SECONDS).values())

    def _take(self, rank: int) -> None:
        self.ask(self.trainers.take, rank, doing="taking the state of one rank")

    def _rejoin(self) -> None:
        first = self.trainers.flatten("rank").slice(rank=0)
        store = first.open_store.call_one().get()
        holders_by_rank = self.trainers.rejoin.call(store).get().values()
        if holders := sorted({holder for holders in holders_by_rank for holder in holders}):
            raise BeginAgain(f"the process group that is gone is held by {', '.join(holders)}")

    def _compare(self) -> None:
        """Compare the ranks, and hold the run while they differ.

        So it neither trains nor saves a state that differs. Does nothing without a record.
        """
        if self.alike is not None:
            self.alike.compare(self.step_now)

    def step(self) -> list[TitanStep]:
        """Make one step on all ranks. Call `save_if_due` after the step is recorded."""
        step = self.step_now + 1
        started = time.monotonic()
        patience = patience_seconds(self.config, step, self.seconds_of_last)
        results: list[TitanStep] = self.ask(
            self.trainers.step, doing=f"step {step}", seconds=patience
        )
        self.seconds_of_last = time.monotonic() - started
        self.step_now = results[0].step
        if self.alike is not None:
            self.alike.look(self.step_now, [result.fingerprint for result in results])
        return results

    def save_if_due(self) -> Saved:
        """Save a checkpoint of the present step if the config has one after it.

        Otherwise return a save that has finished in the background; empty if there is none.
        """
        self._compare()
        saved: list[Saved] = self.ask(self.trainers.save_if_due, doing="saving a checkpoint")
        return saved[0]

    def save(self) -> Path | None:
        """Save a checkpoint, and return its path; None if the config has checkpoints disabled.

        Raises RunFailed if it cannot be saved.
        """
        saved = self.save_if_possible()
        if saved.failure:
            raise RunFailed(f"could not save a checkpoint: {saved.failure}")
        return saved.path

    def save_if_possible(self) -> Saved:
        """Save a checkpoint; return its path or the reason why it failed."""
        self._compare()
        saved: list[Saved] = self.ask(self.trainers.save, doing="saving a checkpoint")
        return saved[0]

    def shadow(self) -> None:
        """Let all ranks copy their state into their hosts' memory during the next step."""
        if self.holding is not None:
            self.holding.shadow()

    def configure(self, config: TitanConfig) -> None:
        """Apply the live keys of a config on all ranks."""
        self.ask(self.trainers.configure, config, doing="changing the config")
        self.config = config

    def close(self) -> None:
        """Close the training on all ranks. The processes stay."""
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
        """Call an endpoint on all ranks, and return their answers. Raises RunFailed if one hangs.

        ``seconds`` is the time limit. Config and checkpoint errors of a rank become RunFailed, too.
        """
        patience = seconds or float(self.config.comm.init_timeout_seconds)
        try:
            if self.holding is not None:
                return self.holding.ask(
                    endpoint, *args, doing=doing, unless=unless, in_place=in_place, seconds=patience
                )
            return ask_all(
                endpoint,
                *args,
                seconds=patience,
                witnesses=self.witnesses,
                doing=doing,
                unless=unless,
            )
        except ActorError as error:
            if isinstance(error.exception, ConfigError):
                raise RunFailed(in_words(error.exception)) from error
            if isinstance(error.exception, CheckpointError):
                raise RunFailed(str(error.exception)) from error
            raise


def patience_seconds(config: TitanConfig, step: int, seconds_of_last: float | None) -> float:
    """Return after how many seconds a step counts as hung.

    It is the larger of `comm.train_timeout_seconds` and five times the last step's time. Without a
    last step, or if the step validates, it is `comm.init_timeout_seconds`.
    """
    validation = section(config, "validation")
    validates = validation.enable and (step % validation.freq == 0 or step == config.training.steps)
    if seconds_of_last is None or validates:
        return float(config.comm.init_timeout_seconds)
    return float(max(config.comm.train_timeout_seconds, math.ceil(5 * seconds_of_last)))


@dataclass(frozen=True)
class TitanOutcome:
    """The end of a run. Losses are NaN if they were not measured."""

    step: int
    loss: float
    validation_loss: float
    checkpoint: Path | None
    num_restarts: int


def run(config: TitanConfig, hosts: HostMesh, record: Record) -> TitanOutcome:
    """Train to the end on `hosts`, step by step, so that code can change between two steps.

    When a rank dies or hangs, all ranks start again in new procs: from copies in the hosts' memory,
    if these are newer than the last checkpoint. When the record is stopping, a checkpoint is saved
    first; the same command then continues from there.
    """
    check(config, len(hosts), record.procs_per_host)
    return with_attempts(
        lambda attempt: train(record.live(config), record, attempt),
        hosts,
        record.procs_per_host,
        record,
        name="titan",
        preload=PRELOAD,
        max_restarts=config.fault_tolerance.max_restarts,
        has_shards=True,
    )


def train(config: TitanConfig, record: Record, attempt: TrainingAttempt) -> TitanOutcome:
    """Make one attempt: train until the end, until the record is stopping, or until a rank is
    lost.
    """
    saving = attempt.saving
    may_save = config.checkpoint.enable and not config.checkpoint.load_only
    driver = Driver(
        attempt.procs, record, attempt.memory, save=(lambda: save_new_steps()) if may_save else None
    )
    first_config = in_folder(config, record.folder)
    if attempt.saved_step is not None and config.checkpoint.load_step != -1:
        # After its first checkpoint, a run continues from its newest one. The step is not named:
        # that checkpoint may be lost with its host.
        first_config = with_values(first_config, checkpoint={"load_step": -1})
    # A run that is stopped before its first step ends here.
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
        if driver.step_now not in (setup.first_step, saving.saved_step):
            tell_saved(saving, driver.step_now, driver.save_if_possible())

    step = setup.first_step
    last = {"loss": math.nan, "validation_loss": math.nan}
    generation = -1
    while step < setup.num_steps and not record.is_stopping:
        live_config = record.live(config)
        if live_config != config:
            driver.configure(live_config)
            config = live_config
        results = driver.step()
        result = next(result for result in results if result.rank == setup.metrics_rank)
        step, values = result.step, dict(result.values)
        attempt.step_made(step)
        oldest = min(result.generation for result in results)
        if values or oldest != generation:
            generation = oldest
            record.metrics(step, setup.num_steps, {**values, "generation": generation})
        if not math.isfinite(values.get("loss", 0.0)):
            raise RunFailed(
                f"the loss of step {step} is {values['loss']}: training on would be of no use. "
                f"A lower optimizer.lr may help. The last checkpoint: {saving.latest or 'none'}"
            )
        last.update((key, values[key]) for key in last if key in values)
        # The metrics are recorded first: a run that resumes from the checkpoint does not.
        if any(result.is_save_due for result in results):
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
    """Record a finished save, or its failure after ``step``; do nothing if ``saved`` is empty.

    With ``must`` a failure raises RunFailed.
    """
    if saved.path:
        if saved.step != saving.saved_step:
            saving.saved(saved.step, saved.path)
    elif saved.failure:
        saving.failed(step, saved.failure, must=must)


def check(config: TitanConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the config does not fit the number of procs, before any is started."""
    check_config(config, num_hosts * procs_per_host)
