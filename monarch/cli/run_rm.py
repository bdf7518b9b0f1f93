"""``monarch runs rm``: takes runs away that nobody needs any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from monarch.cli.confirm import ask_before
from monarch.cli.volume import say
from monarch.errors import JobError
from monarch.runs.folder import RUNS, RunFolder, find_run, runs_in
from monarch_sync.words import byte_size, counted


def rm(names: tuple[str, ...], yes: bool) -> None:
    """Remove runs, once a person or ``yes`` agrees."""
    found = list(dict.fromkeys(_one_named(name) for name in names))
    if going := [run.name for run in found if run.running_pid is not None]:
        raise JobError(
            f"{' and '.join(going)} {'is' if len(going) == 1 else 'are'} going on, so nothing was "
            "taken away: stop it with Ctrl-C in its terminal first"
        )
    sizes = {run: run.num_bytes() for run in found}
    for run, size in sizes.items():
        say(f"  {run.name}  {run.status}, {byte_size(size)}")
    whole = f"{counted(len(found), 'run')}, {byte_size(sum(sizes.values()))}"
    if not ask_before(f"take away {whole}? It cannot be undone", yes):
        raise JobError("nothing was taken away: nobody can be asked here, so say --yes")
    for run in found:
        _remove(run)
    left = runs_in()
    if left:
        left[-1].link_as_latest()
    else:
        (RUNS / "latest").unlink(missing_ok=True)
    say(f"took away {whole}")


def _one_named(name: str) -> RunFolder:
    """A run of this folder that can be meant by nothing else."""
    meant = find_run(name)
    mine = runs_in()
    if meant.path.resolve() not in {run.path.resolve() for run in mine}:
        raise JobError(f"{name} is no run of this folder: `monarch runs ls` lists them")
    alike = [run.name for run in mine if run.name.startswith(name)]
    if len(alike) > 1 and meant.name != name and name != "latest":
        raise JobError(f"{name} may be {_either(alike)}: say which")
    return RunFolder(RUNS / meant.path.resolve().name)


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _remove(run: RunFolder) -> None:
    try:
        if os.path.islink(run.path):
            os.unlink(run.path)
        else:
            shutil.rmtree(run.path)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise JobError(f"{run.name} is still there in part: {where}{error.strerror}") from None
