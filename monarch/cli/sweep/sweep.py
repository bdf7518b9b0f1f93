"""``monarch sweep``: runs one recipe with several configs, side by side on slices of the mesh."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from monarch.actor import HostMesh
from monarch.cli.allocation.users import check_free
from monarch.cli.project import load_project, noted_job
from monarch.cli.run.recipe import recipe_here, workspace_first
from monarch.cli.run.run_target import RunTarget, find_target
from monarch.cli.runs.runs import comparison
from monarch.cli.sweep.search import (
    TPE_METRIC,
    Given,
    Goal,
    ListedProposals,
    Proposals,
    TPEProposals,
    best_of,
    choices_of,
    corners_of,
    drawn_from,
    goal_of,
    label_of,
    space_of,
    value_of,
)
from monarch.cli.sweep.sweep_display import SweepDisplay, sweep_display
from monarch.cli.terminal.interrupts import stop_on_interrupt
from monarch.cli.terminal.tables import echo_columns
from monarch.cli.terminal.volume import say
from monarch.config_file import ConfigError, LoadedConfig, load_config
from monarch.errors import JobError
from monarch.runs.recipe.recipe import Recipe
from monarch.runs.record.folder import new_run
from monarch.runs.session import RunSession
from monarch_sync.words import counted


def sweep(
    name: str,
    overrides: tuple[str, ...],
    config_file: str | None,
    procs: int | None,
    slices: int | None,
    yes: bool,
    metric: str | None,
    goal: Goal | None,
    num_random: int | None,
    num_tpe: int | None,
    seed: int,
) -> None:
    """Run recipe ``name`` for each choice of values, and print a comparison."""
    if num_random and num_tpe:
        raise click.UsageError("--random and --tpe are two ways to search: give one of them")
    check_free(noted_job())
    recipe = recipe_here(name)
    space = space_of(recipe.config_class, overrides)
    # TPE's metric must be known before there is a run.
    metric_name = metric or (TPE_METRIC if num_tpe else "")
    proposals: Proposals
    if num_tpe:
        to_check = corners_of(space)
        goal = goal or goal_of(metric_name)
        proposals = TPEProposals(space, num_tpe, seed, goal)
    else:
        to_check = drawn_from(space, num_random, seed) if num_random else choices_of(space)
        proposals = ListedProposals(to_check)
    target = find_target(procs, None)
    slots = slots_of(target, min(slices or target.num_hosts, proposals.num))

    def load(choice: Given) -> LoadedConfig[Any]:
        return load_config(recipe.config_class, config_file, choice, os.environ)

    for choice in to_check:
        for slot in slots:
            recipe.check(load(choice), slot.num_hosts, slot.procs_per_host)
    workspace_first()
    hosts, code, generation = target.attach(load_project(None), is_agreed=yes, may_ask=True)
    say(f"{counted(proposals.num, 'run')} of {name}, {len(slots)} at a time, on {target.text}")
    config = ["--config", config_file] if config_file else []
    with sweep_display(proposals.num) as display:

        def begin(choice: Given) -> _Trial:
            label = label_of(choice, overrides)
            session = RunSession(
                folder=new_run(recipe.name),
                display=display.of(label),
                loaded=load(choice),
                command=["monarch", "run", name, *config, *choice],
                config_file=Path(config_file) if config_file else None,
                overrides=choice,
                environment=os.environ,
                procs_per_host=slots[0].procs_per_host,
                code=code.another() if code is not None else None,
                generation=generation,
            )
            return _Trial(label, choice, session)

        trials = _Going(recipe, proposals, begin, metric_name, display)
        trials.run(hosts, slots)
    begun = [session.folder for session in trials.sessions if session.folder.status != "empty"]
    if begun:
        echo_columns(comparison(begun))
    if text := best_of(begun, metric_name, goal):
        click.echo(text)
    if trials.is_stopping:
        raise KeyboardInterrupt
    if trials.errors:
        raise JobError("\n".join(trials.errors))


@dataclass(frozen=True)
class Slot:
    """A part of the mesh: some hosts, or some procs of one host."""

    first_host: int
    num_hosts: int
    procs_per_host: int

    def of(self, hosts: HostMesh) -> HostMesh:
        """Return the slot's hosts."""
        if len(hosts) == self.num_hosts:
            return hosts
        last = self.first_host + self.num_hosts
        return hosts.flatten("hosts").slice(hosts=slice(self.first_host, last))


def slots_of(target: RunTarget, num_slots: int) -> list[Slot]:
    """Return the target's ``num_slots`` parts, all of equal size.

    Raises ``JobError`` if there are not enough procs.
    """
    if num_slots <= target.num_hosts:
        size = target.num_hosts // num_slots
        return [Slot(index * size, size, target.procs_per_host) for index in range(num_slots)]
    on_host = -(-num_slots // target.num_hosts)
    if on_host > target.procs_per_host:
        raise JobError(
            f"{num_slots} slices need {on_host} procs on each host, and there are "
            f"{target.procs_per_host}: --procs {on_host} gives more, --slices takes fewer"
        )
    each = target.procs_per_host // on_host
    return [Slot(index // on_host, 1, each) for index in range(num_slots)]


class _Trial(NamedTuple):
    """A run of the sweep, and its label, which distinguishes it from the others."""

    label: str
    given: Given
    session: RunSession


class _Going:
    """Makes the runs of a sweep: each slot takes the next proposal when it is free.

    ``errors`` has a text for each run that failed.
    """

    def __init__(
        self,
        recipe: Recipe,
        proposals: Proposals,
        begin: Callable[[Given], _Trial],
        metric: str,
        display: SweepDisplay,
    ) -> None:
        self.sessions: list[RunSession] = []
        self.errors: list[str] = []
        self.is_stopping = False
        self._recipe, self._proposals, self._begin = recipe, proposals, begin
        self._metric, self._display = metric, display
        self._lock = threading.Lock()  # Guards the proposals.

    def run(self, hosts: HostMesh, slots: Sequence[Slot]) -> None:
        """Run until all runs have ended, or a person stops them."""
        threads = [
            threading.Thread(target=self._work, args=(hosts, slot), name="monarch-sweep")
            for slot in slots
        ]
        with stop_on_interrupt([self]):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    # Ctrl-C asks all runs to stop.

    @property
    def can_save(self) -> bool:
        return any(session.record.can_save for session in self.sessions)

    def message(self, text: str) -> None:
        self._display.tell(text)

    def stop(self) -> None:
        self.is_stopping = True
        for session in list(self.sessions):
            session.record.stop()

    def _work(self, hosts: HostMesh, slot: Slot) -> None:
        while (trial := self._next()) is not None:
            label, choice, session = trial
            self._display.begun(label)
            try:
                _run_one(self._recipe, session, slot.of(hosts), slot)
            except KeyboardInterrupt:
                pass  # Ctrl-C stopped it before it had anything to save.
            except Exception as error:
                self.errors.append(f"{session.folder.name}: {error}")
            self._display.ended(label, session.folder.status)
            self._tell(choice, session)

    def _next(self) -> _Trial | None:
        with self._lock:
            choice = None if self.is_stopping else self._proposals.next()
            if choice is None:
                return None
            try:
                trial = self._begin(choice)
            except (JobError, ConfigError) as error:
                self.errors.append(f"{' '.join(choice)}: {error}")
                return None
            self.sessions.append(trial.session)
        if self.is_stopping:  # Meanwhile.
            trial.session.record.stop()
        return trial

    def _tell(self, choice: Given, session: RunSession) -> None:
        with self._lock:
            try:
                value = value_of(session.folder, self._metric)
            except JobError as error:
                value = None
                if str(error) not in self.errors:
                    self.errors.append(str(error))
            self._proposals.tell(choice, value)


def _run_one(recipe: Recipe, session: RunSession, hosts: HostMesh, slot: Slot) -> None:
    with session:
        if recipe.takes_hosts:
            session.outcome = recipe.run(session.loaded.config, hosts, session.record)
            return
        target = RunTarget(None, "", slot.num_hosts, slot.procs_per_host)
        procs = target.spawn(hosts, recipe)
        try:
            session.outcome = recipe.run(session.loaded.config, procs, session.record)
        finally:
            procs.stop().get()
