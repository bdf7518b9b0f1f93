"""The commands to observe a mesh, with their arguments, options and help."""

from __future__ import annotations

from pathlib import Path

import click

from monarch.cli.options import calls

run_option = click.option("--run", "run", metavar="RUN", help="of a run's folder, not of what runs")


@click.command()
@click.argument("sql", required=False)
@run_option
@click.option("-f", "--file", type=click.Path(path_type=Path), help="a file with the SQL")
@click.option("--format", "form", type=click.Choice(["table", "json", "jsonl", "csv"]))
@click.option("--csv", "form", flag_value="csv", help="lines of comma-separated values")
@click.option("--json", "form", flag_value="json", help="a list of objects")
@click.option("--timeout", metavar="DURATION", help="give up on the answer then: 30s, 2m")
@calls("monarch.cli.observe.questions:query")
def query() -> None:
    """Ask SQL of what all processes remember of their last calls, failures, pushes.

    SQL is also the name of a ready question, or - for standard input. Without SQL, it lists the
    ready questions and the tables. A query reads no files. Needs the extra `observe`.
    """


@click.command()
@run_option
@click.option("--json", "is_json", is_flag=True, help="an object, for programs")
@calls("monarch.cli.observe.questions:hang")
def hang() -> None:
    """Show which ranks wait for which, and which collective does not match on all ranks.

    Exits with 1 where something is found that cannot end by itself.
    """


@click.command()
@run_option
@click.option("--seconds", type=click.FloatRange(0, 3600), default=0.0, help="watch so long first")
@click.option("--torch", "with_torch", is_flag=True, help="with torch's profiler on all procs")
@click.option("-o", "file", type=click.Path(path_type=Path), default=Path("trace.json.gz"))
@calls("monarch.cli.observe.questions:trace")
def trace() -> None:
    """Write one file with all ranks for ui.perfetto.dev: calls and their senders, collectives.

    Clocks of several machines are aligned; the file says how well.
    """


@click.command(hidden=True)
@click.option("--time", "duration", default="10s", metavar="DURATION", help="watch so long")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json.gz"))
@calls("monarch.cli.observe.questions:profile")
def profile() -> None:
    """Do what `monarch trace --seconds` does, under the name that PyTorch's Monarch gives it."""


@click.command(hidden=True)
@click.option("--addr", "-a", help="has no meaning here: hosts are found by the folder's job")
def tui(addr: str | None) -> None:
    """Do what `monarch top` does, under the name that PyTorch's Monarch gives it."""
    if addr is not None:
        raise click.UsageError(
            "--addr: there is no admin server to ask; without it, this watches the hosts of the "
            "folder's job, as `monarch top`"
        )
    from monarch.cli.observe.views import top

    top()


@click.command()
@calls("monarch.cli.observe.views:top")
def top() -> None:
    """Watch hosts, ranks and their waits in this terminal; ? lists the keys.

    Needs the extra `observe`.
    """


@click.command()
@run_option
@click.option(
    "--port", type=click.IntRange(0, 65535), help="[default: 8265, or another if it is taken]"
)
@click.option("--open", "opens", is_flag=True, help="in your browser, too")
@click.option("--read-only", is_flag=True, help="without buttons that do something")
@click.option("--stdin", "from_stdin", is_flag=True, hidden=True)
@calls("monarch.cli.observe.pages:dashboard")
def dashboard() -> None:
    """Watch what runs, and all runs of this folder, in a browser. Needs the extra `observe`.

    The page can stay open: it shows whatever begins later. With --run it shows that run alone.

    From afar: ssh -L 8265:127.0.0.1:8265 HOST, and open the URL that this command prints.
    """
