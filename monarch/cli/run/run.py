"""``monarch run``: runs a recipe, from a config file, on the running allocation."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from monarch.actor import HostMesh, this_host
from monarch.cli.allocation.users import check_free, in_use_text
from monarch.cli.options import DEV
from monarch.cli.project import PROJECT_FILE, Project, load_project, noted_job
from monarch.cli.run.display import run_display
from monarch.cli.run.recipe import (
    fast_dev_here,
    outline_here,
    preload_here,
    recipe_here,
    workspace_first,
)
from monarch.cli.run.run_target import RunTarget, find_target
from monarch.cli.terminal.confirm import is_somebody_there
from monarch.cli.terminal.interrupts import INTERRUPTED, at_once_from_here, stop_on_interrupt
from monarch.cli.terminal.keys import keys_here
from monarch.cli.terminal.tables import in_columns
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import say
from monarch.config import configure, configured, settings
from monarch.config_file import (
    ConfigError,
    LoadedConfig,
    live_keys,
    load_config,
    to_toml,
    with_keys_of,
)
from monarch.errors import ActorError, HostBusy, JobError, MonarchError
from monarch.runs import Record
from monarch.runs.end_text import end_text
from monarch.runs.recipe.outline import Outline
from monarch.runs.recipe.recipe import Recipe
from monarch.runs.recipe.script_source import is_plain_script, path_there
from monarch.runs.record.code import RunCode
from monarch.runs.record.edits import OnEditError
from monarch.runs.record.error_lines import lines_of
from monarch.runs.record.error_text import in_words
from monarch.runs.record.folder import (
    HOSTS_OPTION,
    RUNS,
    TRACEBACK,
    RunFolder,
    config_of,
    find_run,
    find_unfinished,
    new_run,
    what_changed,
)
from monarch.runs.record.logs import RunLogs
from monarch.runs.recover.allocation import AllocationLost, OnHostLoss
from monarch.runs.roles import chosen_roles
from monarch.runs.session import RunSession
from monarch.runtime.client_agent import client
from monarch.runtime.workspace.session import session_of
from monarch_sync.words import counted, plain

_INTERRUPTED_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_HELD_OUT = ("held_out_", "validation_")


def run(
    recipe: str | None,
    overrides: tuple[str, ...],
    config_file: str | None,
    procs: int | None,
    attach: bool | None,
    plan: bool,
    show_origin: bool,
    resume: str | None,
    new: bool,
    yes: bool,
    on_edit_error: OnEditError | None,
    hosts: int | None,
    on_host_loss: OnHostLoss | None,
    on_error: str | None,
    fast_dev_run: bool = False,
    roles: str | None = None,
    traceback: bool = False,
) -> None:
    """Run ``recipe`` on the allocation, else on this machine alone, and report how it ended."""
    if resume and "=" in resume:
        overrides, resume = (resume, *overrides), "latest"
    if resume and recipe and "=" in recipe:
        overrides = (recipe, *overrides)
        recipe = None
    if fast_dev_run:
        if recipe is None or resume:
            raise click.UsageError("--fast-dev-run begins a run of its own: name a RECIPE")
        keys_given = {override.partition("=")[0].strip() for override in overrides}
        quick = (word for word in fast_dev_here(recipe) if word.partition("=")[0] not in keys_given)
        overrides, new = (*quick, *overrides), True
    earlier = find_run(resume) if resume else None
    recipe = recipe or recipe_of(earlier)
    request = RunRequest(recipe, config_file, overrides, procs, hosts=hosts, roles=roles)
    outline = outline_here(request.recipe)
    if outline is not None:
        try:
            request.load(outline, earlier)  # Reports mistakes before torch is imported.
        finally:
            outline.forget()
    if not (plan or show_origin):
        # Before the recipe and all that it needs is imported, which takes much longer.
        job = noted_job() if attach is not False else None
        check_free(job, request.typed)
        preload = preload_here(request.recipe) if job is None else ()
        if preload:
            # This machine's procs are forked from a process that imports it while this one imports
            # the recipe. A failed import is reported there.
            this_host().preload(preload)
    imported = recipe_here(request.recipe)
    loaded = request.load(imported, earlier)
    if show_origin:
        click.echo(to_toml(loaded.config, loaded.origins), nl=False)
        return
    sizes = chosen_roles(imported.name, imported.roles, roles, load_project(None).file.roles)
    target = find_target(request.procs, attach, hosts, sizes)
    imported.check(loaded, target.num_hosts, target.procs_per_host)
    if plan:
        click.echo(_plan_text(imported, loaded.config, target))
        return
    workspace_first()
    if earlier is None and not new and not request.is_script:
        earlier, loaded = _unfinished(imported, request, loaded)
    project = load_project(None)
    if on_error is not None or project.file.debug.on_error:
        configure(on_error=on_error or project.file.debug.on_error)
    try:
        mesh, code, generation = target.attach(project, is_agreed=yes, may_ask=True)
    except HostBusy as busy:
        raise JobError(in_use_text([busy.holder], request.typed)) from None
    folder = None
    try:
        with run_display() as display:
            if earlier is not None:
                was = "had" if earlier.status == "failed" else "was"
                display.message(f"going on with {earlier.path}, which {was} {earlier.status}")
            session = RunSession(
                folder=earlier or new_run(imported.name),
                display=display,
                loaded=loaded,
                command=request.typed,
                config_file=request.config_path,
                overrides=overrides,
                environment=os.environ,
                procs_per_host=target.procs_per_host,
                roles=sizes,
                code=code,
                generation=generation,
            )
            record = session.record
            if on_edit_error is not None:
                record.edits.policy = on_edit_error
            if not _is_dev():  # There, keys go to the watch.
                record.listen_to_keys = keys_here
            # Above a spinner or a table, not through them.
            switching = session_of(client()).reload
            switching.on_waiting = record.message
            switching.on_replacing = lambda plan, num_procs: record.replacing(
                plan.generation, num_procs
            )
            switching.audits.on_found.append(
                lambda generation, audit: record.audited(
                    generation,
                    audit.lines(audit.stale),
                    audit.lines(audit.kept),
                    is_told=not _is_dev(),  # There, the watch says it.
                )
            )
            client().holds.tell = record.message
            record.allocation = target.allocation(
                project,
                record,
                functools.partial(_after_host_loss, record, on_host_loss),
                lambda num_hosts: _why_unfit(imported, loaded, num_hosts, target.procs_per_host),
            )
            display.message(f"{request.recipe} on {target.text}")
            if target.job is None and attach is None and (hosts_asked := _hosts_asked(project)):
                display.message(
                    f"{PROJECT_FILE} asks for {hosts_asked}, and none is up: this run does not "
                    "follow your saves. `monarch dev` runs it so that it does (or `monarch apply`, "
                    "and `monarch sync --watch` beside the run); --local omits this line"
                )
            with session, _logs_of(session.folder, imported.name):
                folder = session.folder
                record.phase(f"starting {imported.name}")
                session.outcome = run_recipe(imported, loaded.config, mesh, target, record)
    except (Exception, KeyboardInterrupt) as error:
        if folder is None:
            raise
        _tell_end(folder, error, record, code, is_whole=traceback)
    if fast_dev_run and not record.is_stopping:
        say(ways_taken(folder))
    # Below the table, which stays as it was last.
    say(_end_text(folder, stream=sys.stdout))
    if record.is_stopping:
        _end_in_order()


def _end_in_order() -> NoReturn:
    """Exit with the status of Ctrl-C, after the run's end has been reported."""
    at_once_from_here()
    sys.exit(INTERRUPTED)


def ways_taken(run: RunFolder) -> str:
    """Return a text about what a short run has shown to work, and what it has not tested."""
    rows, events = run.metrics(), run.events()
    is_evaluated = any(name.startswith(_HELD_OUT) for row in rows for name in row)
    is_saved = any(event["kind"] == "saved" for event in events)
    ways = {"an evaluation": is_evaluated, "a checkpoint": is_saved}
    taken = [counted(len(rows), "step"), *(way for way, is_done in ways.items() if is_done)]
    text = taken[0]
    if len(taken) > 1:
        text = f"fast dev run: {', '.join(taken[:-1])} and {taken[-1]} went well"
    missing = [way for way, is_done in ways.items() if not is_done]
    return f"{text}: all paths ran" if not missing else f"{text}; without {' and '.join(missing)}"


def _hosts_asked(project: Project) -> str:
    """Return the number of hosts in ``monarch.toml``, in words; "" if it asks for none."""
    job = project.file.job
    if job.kind == "local" or not (project.directory / PROJECT_FILE).exists():
        return ""
    return counted(sum(job.num_hosts().values()), "host")


def _after_host_loss(record: Record, choice_given: OnHostLoss | None, lost: str) -> OnHostLoss:
    """Return the user's choice after the loss of a host, asked at the terminal if it was not given
    before.
    """
    if choice_given is not None:
        return choice_given
    if not is_somebody_there():
        return "end"
    record.alarm(f"{lost}\nGo on with (f)ewer hosts, (w)ait until it is back, or (e)nd the run?")
    record.phase("waiting for f, w or e")
    choices: dict[str, OnHostLoss] = {"f": "fewer", "w": "wait", "e": "end"}
    with keys_here() as keys:
        while not record.is_stopping:
            if choice := choices.get(keys.take()):
                record.phase("")
                return choice
            time.sleep(_LOOK_SECONDS)
    return "end"


def _why_unfit(
    recipe: Recipe, loaded: LoadedConfig[Any], num_hosts: int, procs_per_host: int
) -> str:
    try:
        recipe.check(loaded, num_hosts, procs_per_host)
    except ConfigError as error:
        return in_words(error)
    return ""


def _tell_end(
    folder: RunFolder,
    error: BaseException,
    record: Record,
    code: RunCode | None,
    *,
    is_whole: bool,
) -> NoReturn:
    """Report the end of a run and exit: an error of the user's code in two lines.

    With ``is_whole`` its traceback is shown too.
    """
    if isinstance(error, KeyboardInterrupt):
        say(_end_text(folder, stream=sys.stdout))
        _end_in_order()
    gone = record.why_gone()
    if gone and not isinstance(error, AllocationLost):
        error = AllocationLost(gone)  # It is the cause of the other error.
    if isinstance(error, ActorError) and isinstance(error.exception, (ConfigError, MonarchError)):
        error = error.exception  # It says all; where in a rank it was found is of no use.
    lines = lines_of(error)
    reason: str | BaseException = error
    if lines is not None:
        text = lines.traceback
        if code is not None:
            text = code.in_authors_words(text)
            lines = lines._replace(file=code.in_authors_words(lines.file))
        with suppress(OSError):
            folder.write_text(TRACEBACK, text.rstrip() + "\n")
        reason = lines.told()
        if is_whole:
            click.echo(plain(text), err=True)
    text_of_end = _end_text(folder, reason)
    raise RunEnded(plain(code.in_authors_words(text_of_end) if code else text_of_end)) from error


def _end_text(
    folder: RunFolder, reason: str | BaseException = "", stream: TextIO = sys.stderr
) -> str:
    return end_text(folder, reason, Terminal(stream).width, is_dev=_is_dev())


def _is_dev() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.info_name == DEV


class RunEnded(MonarchError):
    """A run has ended early; the message says why, and how to resume it."""


@dataclass(frozen=True)
class RunRequest:
    """A request for a run. If it is made again, it resumes the run that it left unfinished."""

    recipe: str
    config_file: str | None
    overrides: tuple[str, ...]
    procs: int | None
    hosts: int | None = None
    roles: str | None = None

    @property
    def command(self) -> list[str]:
        """Return the command without the number of hosts, which may differ when the run is
        resumed."""
        return self._command([])

    @property
    def typed(self) -> list[str]:
        """Return the command as the user typed it, with the number of hosts."""
        return self._command([HOSTS_OPTION, str(self.hosts)] if self.hosts else [])

    def _command(self, options: list[str]) -> list[str]:
        if self.config_file:
            options = [*options, "--config", self.config_file]
        if self.procs:
            options = [*options, "--procs", str(self.procs)]
        if self.roles:
            options = [*options, "--roles", self.roles]
        between = ["--"] if self.is_script and self.overrides else []
        return ["monarch", "run", self.recipe, *options, *between, *self.overrides]

    @cached_property
    def is_script(self) -> bool:
        """Whether the recipe is a plain script; then ``overrides`` are the script's own flags."""
        return is_plain_script(self.recipe)

    @property
    def config_path(self) -> Path | None:
        return Path(self.config_file) if self.config_file else None

    def load(self, recipe: Recipe | Outline, earlier: RunFolder | None) -> LoadedConfig[Any]:
        """Return the config: from the given file, else from ``earlier``, the run that is resumed.

        Raises ``ConfigError`` for all mistakes, before any process is started.
        """
        path = self.config_path
        if self.is_script:
            if path is not None:
                raise ConfigError(
                    f"{self.recipe} is a plain script, and has no config of ours: its own flags go "
                    f"behind `--`, as in `monarch run {self.recipe} -- --config {self.config_file}`"
                )
            return load_config(recipe.config_class, None, self._of_script(earlier))
        if path is None and earlier is not None:
            path = earlier.config_path
        return load_config(recipe.config_class, path, self.overrides, os.environ)

    def _of_script(self, earlier: RunFolder | None) -> list[str]:
        """Return the overrides of `ScriptConfig` for a plain script: the script and its arguments.

        If no arguments are given, they are those of ``earlier``, the run that is resumed.
        """
        args = list(self.overrides)
        if not args and earlier is not None and "--" in earlier.command:
            args = earlier.command[earlier.command.index("--") + 1 :]
        path = path_there(self.recipe, load_project(None).make_workspace())
        values = {"script": self.recipe, "args": args, "there": path}
        return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def recipe_of(earlier: RunFolder | None) -> str:
    """Return the recipe of a run that is resumed by its name alone.

    Raises ``UsageError`` if there is no such run, and ``JobError`` if its folder names no recipe.
    """
    if earlier is None:
        raise click.UsageError("Missing argument 'RECIPE': `monarch recipe ls` lists them")
    if not earlier.recipe:
        raise JobError(
            f"{plain(str(earlier.path / 'command'))} does not say which recipe this run is of. "
            f"Name it: `monarch run RECIPE --resume={plain(earlier.name)}`"
        )
    return earlier.recipe


def _unfinished(
    recipe: Recipe, request: RunRequest, loaded: LoadedConfig[Any]
) -> tuple[RunFolder | None, LoadedConfig[Any]]:
    """Return the run that the same command left unfinished, and the config to resume it with.

    If there is none, or its config differs from ``loaded``, return ``None`` and ``loaded``.
    """
    earlier = find_unfinished(RUNS, recipe.name, request.command)
    if earlier is None:
        return None, loaded
    changed = what_changed(earlier, loaded.config)
    if changed:
        say(
            f"{earlier.path} was left unfinished, but {', '.join(changed)} changed since: this is "
            f"a new run, from step 0; --resume={earlier.name} goes on with what the old one has "
            "learned"
        )
        return None, loaded
    # Values that were changed live in the run's own file hold, unless the command line says
    # otherwise now.
    earlier_config = config_of(earlier, recipe.config_class)
    unsaid = [k for k in live_keys(recipe.config_class) if loaded.origins[k].layer == "default"]
    config = with_keys_of(loaded.config, earlier_config, unsaid)
    return earlier, LoadedConfig(config, loaded.origins)


def run_recipe(
    recipe: Recipe, config: Any, hosts: HostMesh, target: RunTarget, record: Record
) -> object:
    """Run a recipe on ``hosts``, and return its result.

    Ctrl-C stops it in the way that the recipe supports.
    """
    grace_seconds = settings().stop_timeout_seconds
    mesh = None if recipe.takes_hosts else target.spawn(hosts, recipe)
    try:
        with stop_on_interrupt([record] if recipe.is_cooperative else []):
            return recipe.run(config, hosts if mesh is None else mesh, record)
    except KeyboardInterrupt:
        # Everything worth saving has been saved. Actors may still need long for a message.
        grace_seconds = min(grace_seconds, _INTERRUPTED_SECONDS)
        raise
    finally:
        if mesh is not None:
            with configured(stop_timeout_seconds=grace_seconds):
                mesh.stop().get()


@contextmanager
def _logs_of(folder: RunFolder, name: str) -> Iterator[None]:
    """Within, also write the procs' output into the run's folder."""
    logs, printer = RunLogs(folder.path / "logs", name), client().printer
    printer.tee, printer.is_of_run = logs.take, True
    try:
        yield
    finally:
        client().flush_logs()
        printer.tee, printer.is_of_run = None, False
        logs.close()


def _plan_text(recipe: Recipe, config: Any, target: RunTarget) -> str:
    """Return the meshes and ranks, and what the recipe's own ``plan`` adds: parameters, memory."""
    num_ranks = target.num_hosts * target.procs_per_host
    rows: dict[str, Any] = {
        "recipe": f"{recipe.wanted}, {recipe.summary}".rstrip(", "),
        "where": target.text,
        "mesh": f"hosts: {target.num_hosts}, procs: {target.procs_per_host}",
        "ranks": num_ranks,
    }
    plan = recipe.function("plan")
    details = plan(config, target.num_hosts, target.procs_per_host) if plan else None
    if isinstance(details, Mapping):
        rows |= {str(name): value for name, value in details.items()}
    lines = [*in_columns([(name, str(value)) for name, value in rows.items()])]
    if details is not None and not isinstance(details, Mapping):
        lines.append(str(details).rstrip())
    return "\n".join(lines)
