"""``monarch context``: several allocations in one folder, each with a name."""

from __future__ import annotations

from contextlib import suppress

import click

from monarch.cli.terminal.confirm import ask_before
from monarch.cli.terminal.volume import is_quiet, say
from monarch.errors import JobError
from monarch.job import contexts
from monarch.job.job import job_load


def create(name: str, spec: str | None) -> None:
    """Create the context ``name`` for the job ``spec`` (``None``: not chosen yet), and use it."""
    contexts.create_context(name, spec)
    contexts.use_context(name)
    with_spec = f", for {spec}" if spec else ""
    say(f"context {name!r}{with_spec}: `monarch apply` brings its allocation up")


def use(name: str) -> None:
    """Make commands use this context."""
    contexts.use_context(name)
    say(f"commands go to context {name!r} from here on")


def rm(name: str, yes: bool) -> None:
    """Remove a context, and end its allocation if the person agrees."""
    state = contexts.state_of(name)
    if state.exists():
        job = job_load(state)
        if job.num_running():
            if not ask_before(f"the allocation of context {name!r} is up. End it?", yes):
                raise JobError(
                    f"the allocation of context {name!r} is up, so it stays: end it first, or with "
                    f"it: `monarch context rm {name} --yes`"
                )
            job.kill()
            say(f"ended the allocation of {name!r}")
    current = contexts.remove_context(name)
    say(f"took context {name!r} away; commands go to {current!r}")


def ls() -> None:
    """Print the contexts, with the job of each."""
    current = contexts.current_context()
    for name in contexts.all_contexts():
        if is_quiet():
            click.echo(name)
            continue
        state, spec = contexts.state_of(name), contexts.spec_of(name)
        is_up = False
        with suppress(JobError):
            is_up = state.exists() and job_load(state).is_running()
        mark = "*" if name == current else " "
        click.echo(f"{mark} {name}  {'up' if is_up else '-'}  {spec or 'monarch.toml'}")
