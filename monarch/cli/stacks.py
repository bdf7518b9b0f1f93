"""``monarch stacks``: where the threads of all ranks are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from monarch.cli.debug import visit_here
from monarch.core.rank_sets import BadRanks, is_in, parse_set
from monarch.debugger.running import stacks_lines
from monarch.debugger.visit import SeenProc
from monarch.errors import JobError

_PY_SPY_SECONDS = 20.0


def stacks(ranks: str, with_locals: bool, native: bool, mesh: str) -> None:
    """Print the stacks of these ranks; equal ones once."""
    try:
        wanted = parse_set(ranks)
    except BadRanks as error:
        raise click.UsageError(str(error)) from None
    visit = visit_here()
    everybody = visit.procs()
    procs = [proc for proc in everybody if mesh in ("", proc.mesh) and is_in(wanted, proc.rank)]
    if not procs:
        raise JobError("that is none of the procs that run" if everybody else "no proc runs here")
    if native:
        for proc in procs:
            click.echo(_native(proc))
        return
    click.echo("\n".join(stacks_lines(visit, procs, with_locals=with_locals)))


def _native(proc: SeenProc) -> str:
    """By py-spy, of a process of this machine."""
    head = f"{proc.mesh} {proc.rank} (pid {proc.pid} on {proc.host})"
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        raise JobError("--native needs py-spy: pip install 'monarch-loop[debug]'")
    done = subprocess.run(
        [program, "dump", "--native", "--pid", str(proc.pid)],
        capture_output=True, text=True, timeout=_PY_SPY_SECONDS, check=False,
    )  # fmt: skip
    said = done.stdout if done.returncode == 0 else done.stderr.strip()
    return f"{head}\n{said}"
