"""``monarch sweep``: one recipe with several configs, side by side on slices of the mesh."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, get_origin, get_type_hints

import click

from monarch.actor import HostMesh
from monarch.cli.interrupts import stop_on_interrupt
from monarch.cli.project import load_project, noted_job
from monarch.cli.recipe import recipe_here, workspace_first
from monarch.cli.run_target import RunTarget, count, find_target
from monarch.cli.runs import comparison
from monarch.cli.sweep_display import SweepDisplay, sweep_display
from monarch.cli.tables import in_columns, terminal_width
from monarch.cli.users import check_free
from monarch.cli.volume import say
from monarch.config_file import load_config
from monarch.config_file.types import is_config
from monarch.errors import JobError
from monarch.runs.code import RunCode
from monarch.runs.folder import RunFolder, new_run
from monarch.runs.recipe import Recipe
from monarch.runs.session import RunSession

_BY = (("validation_loss", False), ("held_out_accuracy", True), ("loss", False))


def sweep(
    name: str,
    overrides: tuple[str, ...],
    config_file: str | None,
    procs: int | None,
    slices: int | None,
    yes: bool,
) -> None:
    """Run recipe ``name`` once for each choice of values, and print a comparison."""
    check_free(noted_job())
    recipe = recipe_here(name)
    choices = choices_of(recipe.config_class, overrides)
    place = find_target(procs, None)
    slots = slots_of(place, min(slices or place.num_hosts, len(choices)))
    trials = []
    for given in choices:
        loaded = load_config(recipe.config_class, config_file, given, os.environ)
        for slot in slots:
            recipe.check(loaded, slot.num_hosts, slot.procs_per_host)
        trials.append((given, loaded))
    workspace_first()
    hosts, code, generation = place.attach(load_project(None), is_agreed=yes, may_ask=True)
    say(f"{count(len(choices), 'run')} of {name}, {len(slots)} at a time, on {place.text}")
    path = Path(config_file) if config_file else None
    config = ["--config", config_file] if config_file else []
    with sweep_display(len(trials)) as display:
        waiting = [
            _Trial(
                label := label_of(given, overrides),
                RunSession(
                    folder=new_run(recipe.name),
                    display=display.of(label),
                    loaded=loaded,
                    command=["monarch", "run", name, *config, *given],
                    config_file=path,
                    overrides=given,
                    environment=os.environ,
                    procs_per_host=slots[0].procs_per_host,
                    code=None,
                    generation=generation,
                ),
            )
            for given, loaded in trials
        ]
        errors = _run_all(recipe, waiting, hosts, slots, code, display)
    sessions = [trial.session for trial in waiting]
    begun = [session.folder for session in sessions if session.folder.status != "empty"]
    for line in in_columns(comparison(begun), terminal_width()) if begun else ():
        click.echo(line)
    if text := best_of(begun):
        click.echo(text)
    if any(session.record.is_stopping for session in sessions):
        raise KeyboardInterrupt
    if errors:
        raise JobError("\n".join(errors))


@dataclass(frozen=True)
class Slot:
    """A part of the mesh: some hosts, or some procs of one."""

    first_host: int
    num_hosts: int
    procs_per_host: int

    def of(self, hosts: HostMesh) -> HostMesh:
        """The hosts of it."""
        if len(hosts) == self.num_hosts:
            return hosts
        last = self.first_host + self.num_hosts
        return hosts.flatten("hosts").slice(hosts=slice(self.first_host, last))


def slots_of(place: RunTarget, wanted: int) -> list[Slot]:
    """``wanted`` parts of equal size; raises ``JobError`` where there are not enough procs."""
    if wanted <= place.num_hosts:
        size = place.num_hosts // wanted
        return [Slot(index * size, size, place.procs_per_host) for index in range(wanted)]
    on_host = -(-wanted // place.num_hosts)
    if on_host > place.procs_per_host:
        raise JobError(
            f"{wanted} slices need {on_host} procs on each host, and there are "
            f"{place.procs_per_host}: --procs {on_host} gives more, --slices takes fewer"
        )
    each = place.procs_per_host // on_host
    return [Slot(index // on_host, 1, each) for index in range(wanted)]


def choices_of(config_class: type[Any], overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations: ``a=1,2 b=3`` is ``a=1 b=3`` and ``a=2 b=3``. Keys that take lists, and
    what stands in brackets or quotes, have one value."""
    hints = dict(_hints(config_class))
    ways = []
    for override in overrides:
        key, equals, text = override.partition("=")
        is_list = get_origin(hints.get(key.strip())) in (list, tuple, dict)
        if not equals or is_list or text[:1] in "[\"'{":
            ways.append([override])
        else:
            ways.append([f"{key}={value.strip()}" for value in text.split(",")])
    return list(itertools.product(*ways))


def _hints(config_class: type[Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(config_class).items():
        if is_config(hint):
            yield from _hints(hint, f"{above}{name}.")
        else:
            yield above + name, hint


def label_of(given: Sequence[str], overrides: Sequence[str]) -> str:
    """The values that tell a run from the others: those chosen for it."""
    chosen = [one for one, whole in zip(given, overrides, strict=True) if one != whole]
    return " ".join(chosen or given)


class _Trial(NamedTuple):
    """A run of the sweep, and what tells it from the others."""

    label: str
    session: RunSession


def best_of(found: Sequence[RunFolder]) -> str:
    """Which run came out best, by what can be told of all of them, in words."""
    measured = [dict(pair for row in run.metrics() for pair in row.items()) for run in found]
    for name, wants_most in _BY:
        values = [last.get(name) for last in measured]
        numbers = [value for value in values if isinstance(value, (int, float))]
        if len(found) > 1 and len(numbers) == len(found) and all(map(math.isfinite, numbers)):
            value = (max if wants_most else min)(numbers)
            run = found[numbers.index(value)]
            return f"best {name}: {value:.4g}, of {run.name}"
    return ""


def _run_all(
    recipe: Recipe,
    trials: Sequence[_Trial],
    hosts: HostMesh,
    slots: Sequence[Slot],
    code: RunCode | None,
    display: SweepDisplay,
) -> list[str]:
    """Each slot takes the next run that waits; what went wrong, in words."""
    waiting: SimpleQueue[_Trial] = SimpleQueue()
    for trial in trials:
        waiting.put(trial)
    errors: list[str] = []

    def work(slot: Slot) -> None:
        while True:
            try:
                label, session = waiting.get_nowait()
            except Empty:
                return
            if session.record.is_stopping:
                session.discard()
                continue
            session.code = code.another() if code is not None else None
            display.begun(label)
            try:
                _run_one(recipe, session, slot.of(hosts), slot)
            except KeyboardInterrupt:
                pass  # It was to stop, and had nothing to save yet.
            except Exception as error:
                errors.append(f"{session.folder.name}: {error}")
            display.ended(label, session.folder.status)

    threads = [threading.Thread(target=work, args=(slot,), name="monarch-sweep") for slot in slots]
    with stop_on_interrupt([trial.session.record for trial in trials]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors


def _run_one(recipe: Recipe, session: RunSession, hosts: HostMesh, slot: Slot) -> None:
    with session:
        if recipe.takes_hosts:
            session.outcome = recipe.run(session.loaded.config, hosts, session.record)
            return
        place = RunTarget(None, "", slot.num_hosts, slot.procs_per_host)
        procs = place.spawn(hosts, recipe)
        try:
            session.outcome = recipe.run(session.loaded.config, procs, session.record)
        finally:
            procs.stop().get()
