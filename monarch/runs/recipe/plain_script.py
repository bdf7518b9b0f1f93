"""A plain script as a run: ``monarch run train.py --procs 4 -- --lr 0.1``.

A Python file without a recipe runs unchanged, one copy in each proc, as with ``torchrun``. A script
that calls ``monarch.step`` runs within the procs, so that pushed code is loaded between two steps;
any other runs in a separate Python beside each proc, which loads new code when it restarts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from monarch.actor import HostMesh
from monarch.runs.attempts import TrainingAttempt, with_attempts
from monarch.runs.hold.holding import Holding
from monarch.runs.recipe.recipe import Recipe
from monarch.runs.recipe.script_ranks import ScriptEnd, ScriptProcess, ScriptSteps, StepsMade
from monarch.runs.recipe.script_source import calls_step
from monarch.runs.record.error_lines import ErrorLines
from monarch.runs.record.record import Record
from monarch.runs.recover.ranks import RunFailed
from monarch.runtime import process
from monarch.spmd.surroundings import hosts_beyond
from monarch_sync.words import counted

_LOOK_SECONDS = 0.2
NO_STEP = (
    "{name} does not call monarch.step(): what you save reaches it when it starts again "
    "(docs/from_torchrun.md)"
)


@dataclass
class ScriptConfig:
    """A script and its arguments; ``there`` is its path in a copy of the workspace, "" if it is
    not in the workspace."""

    script: str = ""
    args: list[str] = field(default_factory=list)
    there: str = ""


class ScriptFailed(RunFailed):
    """The script of a rank has failed; the text is two lines, and ``lines`` has everything."""

    def __init__(self, script: str, end: ScriptEnd) -> None:
        error = end.error or ErrorLines("exited")
        self.lines = error._replace(
            error=f"{script} failed: {error.error}", on=f"on rank {end.rank}"
        )
        super().__init__(self.lines.told())


def script_recipe(wanted: str) -> Recipe:
    """Return a recipe that runs the script at the path ``wanted``."""
    module = ModuleType(Path(wanted).stem)
    module.__file__ = str(Path(wanted).resolve())
    module.__doc__ = f"{wanted}, a plain script: one copy a proc, as torchrun runs it."
    return Recipe(
        name=Path(wanted).stem,
        wanted=wanted,
        module=module,
        config_class=ScriptConfig,
        takes_hosts=True,
        is_cooperative=False,
        _call=_run,
    )


def _run(config: ScriptConfig, hosts: HostMesh, record: Record) -> None:
    path = Path(config.script)
    has_steps = calls_step(path)
    preload = ("torch",) if has_steps else ()
    if not has_steps and record.code is not None:
        record.message(NO_STEP.format(name=config.script))

    def attempt(tried: TrainingAttempt) -> None:
        ranks = tried.procs.spawn(path.stem, ScriptSteps if has_steps else ScriptProcess)
        first = ranks.slice(**dict.fromkeys(tried.procs.sizes, 0))
        beyond = hosts_beyond(tried.procs)
        address, port = first.get_host_port.call_one(None, beyond).get()
        ranks.setup_env.call(address, port, True).get()
        argv = [str(path.resolve()), *config.args]
        num_here = 1 if beyond else len(ranks)
        ranks.start.call(record.folder.name, config.there, argv, num_here).get()
        run = _run_steps if has_steps else _run_processes
        run(ranks, tried, record, config)

    num_procs = record.procs_per_host
    with_attempts(
        attempt, hosts, num_procs, record, name=path.stem, preload=preload, max_restarts=0
    )


def _run_processes(
    ranks: Any, tried: TrainingAttempt, record: Record, config: ScriptConfig
) -> None:
    """Wait until the scripts of all ranks have ended. If the script of a rank fails, all others are
    ended, as torchrun does.
    """
    record.phase(f"{config.script} runs on {counted(len(ranks), 'rank')}")
    while True:
        ends: list[ScriptEnd | None] = list(ranks.ended.call().get().values())
        failed = [end for end in ends if end is not None and end.status]
        if failed:
            # Ranks that wait for the failed one only report that it is gone.
            raise ScriptFailed(Path(config.script).name, min(failed, key=_is_consequence))
        if None not in ends:
            return
        time.sleep(_LOOK_SECONDS)


def _is_consequence(end: ScriptEnd) -> tuple[bool, bool, int]:
    text = end.error.error if end.error else ""
    is_consequence = any(part in text for part in ("gloo", "NCCL", "Connection", "rocess group"))
    return is_consequence, not (end.error and end.error.file), end.rank


def _run_steps(ranks: Any, tried: TrainingAttempt, record: Record, config: ScriptConfig) -> None:
    """Run the script's steps as calls of all ranks, so that a failing edit does not end the run."""
    holding = Holding(tried.procs, ranks, record, rejoin=None)
    record.phase(f"{config.script} starts on {counted(len(ranks), 'rank')}")
    step = 0
    while True:
        doing = f"{config.script} after step {step}" if step else config.script
        arrived: list[StepsMade] = holding.ask(ranks.go_on, doing=doing, in_place=False)
        if not any(rank.is_at_step for rank in arrived):
            return
        step = max(rank.num_steps for rank in arrived) + 1
        finished: list[StepsMade] = holding.ask(ranks.step, doing=f"step {step}")
        with_figures = [rank for rank in (*arrived, *finished) if rank.figures]
        figures = min(with_figures, key=lambda rank: rank.rank).figures if with_figures else {}
        record.metrics(step, 0, {**figures, "generation": float(process.current().generation)})
        tried.step_made(step)
