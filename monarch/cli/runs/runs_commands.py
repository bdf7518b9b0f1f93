"""``monarch runs``: its subcommands, with their arguments, options and help."""

from __future__ import annotations

from pathlib import Path

import click

from monarch.cli.options import calls

_PATH = click.Path(path_type=Path)


@click.group()
def runs() -> None:
    """Runs: what was run here, how it went, and how runs differ.

    A run is named by its folder, by its name, by the beginning of that (the last such run is
    meant), or as latest.
    """


@runs.command("ls")
@calls("monarch.cli.runs.runs:ls")
def runs_ls() -> None:
    """List the runs of this folder, the last one at the end; with --quiet, their names."""


@runs.command("logs")
@click.argument("name", metavar="[RUN]", default="latest")
@click.option("--follow", "-f", is_flag=True, help="go on until the run ends, or Ctrl-C")
@click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="of this rank only"
)
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="only the last N of each rank"
)
@calls("monarch.cli.runs.runs:logs")
def runs_logs() -> None:
    """Show what the ranks of a run printed.

    Lines of several ranks have the rank in front; those of one are as they were printed.
    """


@runs.command("rm")
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="do not ask")
@calls("monarch.cli.runs.runs:rm")
def runs_rm() -> None:
    """Remove runs, with their checkpoints, logs and reports.

    Asks first at a terminal; elsewhere it needs --yes. If one of the named runs is going on, none
    is removed. The beginning of a name will do where only one run has it.
    """


@runs.command("show")
@click.argument("name", metavar="[RUN]", default="latest")
@calls("monarch.cli.runs.runs:show")
def runs_show() -> None:
    """Show how a run went: figures, what happened, and where its report is."""


@runs.command("compare")
@click.argument("names", metavar="RUN RUN...", nargs=-1, required=True)
@calls("monarch.cli.runs.runs:compare")
def runs_compare() -> None:
    """Show where configs differ, and what came of it, side by side."""


@runs.command("plot")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("--metric", default="loss", show_default=True, help="what to draw")
@click.option("--log", "is_log", is_flag=True, help="on a logarithmic scale")
@click.option(
    "--smooth", type=click.IntRange(min=1), default=1, metavar="N", help="the mean of N values"
)
@click.option("--svg", "file", type=_PATH, help="draw into an SVG file")
@calls("monarch.cli.runs.runs:plot")
def runs_plot() -> None:
    """Draw one quantity of one or more runs over their steps."""


@runs.command("take")
@click.argument("name", metavar="[RUN]", default="latest")
@click.option("--checkpoint", is_flag=True, help="the last checkpoint's state instead")
@calls("monarch.cli.runs.runs:take")
def runs_take() -> None:
    """Continue a run that holds because its ranks differ.

    All ranks take the state of the rank that the run names; with --checkpoint all go on from the
    last checkpoint, in new processes.
    """


@runs.command("hold")
@calls("monarch.cli.runs.slow_runs:ask_slow_runs", key="k")
def runs_hold() -> None:
    """Hold the run of this folder's allocation, where a step on new code takes long.

    As k does in its terminal, or in a watch: the step is interrupted, all ranks go back to before
    it, and it is made again with the next save. A run whose step is not slow goes on.
    """


@runs.command("wait")
@calls("monarch.cli.runs.slow_runs:ask_slow_runs", key="+")
def runs_wait() -> None:
    """Give more time to a step on new code that takes long, as + does in the run's terminal."""


@runs.command("attach")
@click.argument("name", metavar="[RUN]", default="latest")
@calls("monarch.cli.run.detached:attach")
def runs_attach() -> None:
    """Watch a run that goes on detached, with the keys that it has in its own terminal.

    It shows what the run wrote last, then what it writes. Ctrl-C asks whether to leave the run to
    itself or to end it.
    """
