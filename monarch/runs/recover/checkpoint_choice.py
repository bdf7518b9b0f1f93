"""The checkpoint that a key of a config names: a file, a run, the best one of a run.

    resume=runs/ddp-20261121-184922/checkpoints/step-00000100.pt
    resume=ddp-20261121                 the latest of that run, by the beginning of its name
    init_from=ddp-20261121/best         its best, if extras.keep_best has kept one
    init_from=best                      the best of the last run that has one

It is looked up on the machine of the command, before anything is started, without torch.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from monarch.config_file import ConfigError
from monarch.errors import JobError
from monarch.observe.kept_files import leads_out
from monarch.runs.record.folder import RUNS, RunFolder, find_run, runs_in

AUTO, NEVER = "auto", "never"
BEST = "best"
"""The folder beside the checkpoints that keeps the best one."""
_FILES = (".pt", ".pth", ".bin", ".safetensors")
_STEPS = "step-*.pt"


def checkpoint_named(wanted: str, key: str, *, own: Path | None = None, base: Path = RUNS) -> Path:
    """Return the absolute path of the checkpoint that ``wanted`` names.

    ``wanted`` is the path of a checkpoint; or a folder or a run, for its newest checkpoint; or
    "best". ``own`` is the folder of the run that asks: names of runs do not refer to it. Raises
    ConfigError, for ``key``, if nothing is found.
    """
    path = Path(wanted)
    try:
        if path.suffix in _FILES:
            return _file(path, key)
        if path.is_dir() and not (path / "command").exists():
            return _newest(path, f"the folder {wanted}", key)
        if wanted == BEST:
            return _best_of_all(own, base, key)
        name, is_best = wanted.rstrip("/"), False
        if path.name == BEST and wanted != BEST:
            name, is_best = str(path.parent), True
        run = find_run_but(name, own, base)
    except JobError as error:
        raise ConfigError(
            f"names no checkpoint and no run: {error}. Say a checkpoint's path, a run's name, or "
            "best",
            key=key,
        ) from None
    if is_best:
        owner = f"{run.name} (extras.keep_best keeps one)"
        return _newest(run.checkpoint_dir / BEST, owner, key, noun="best checkpoint")
    if (elsewhere := run.saved_elsewhere) is not None:
        return elsewhere[0]
    return _newest(run.checkpoint_dir, run.name, key)


def find_run_but(name: str, own: Path | None, base: Path) -> RunFolder:
    """Return the run that ``name`` names, as ``find_run`` does, but never the run in ``own``.

    Raises ``JobError`` if no other run has that name.
    """
    run = find_run(name, base)
    if own is None or run.path.resolve() != own.resolve():
        return run
    for other in reversed(runs_in(base)):
        matches = name == "latest" or other.name.startswith(name)
        if matches and other.path.resolve() != own.resolve():
            return other
    raise JobError(f"there is no other run {name!r} in {base}")


def check_choices(resume: str, init_from: str | None, *, base: Path = RUNS) -> None:
    """Raise ConfigError if ``resume`` or ``init_from`` names something that does not exist here, or
    if the two conflict.
    """
    if init_from is not None and resume not in (AUTO, NEVER):
        raise ConfigError(
            "begins at step 0 with weights, and `resume` goes on with a run: give one of them",
            key="init_from",
        )
    if resume not in (AUTO, NEVER):
        checkpoint_named(resume, "resume", base=base)
    if init_from is not None:
        checkpoint_named(init_from, "init_from", base=base)


def chosen_for(
    run: Path, resume: str, init_from: str | None, *, base: Path = RUNS
) -> tuple[str, str | None]:
    """Return ``resume`` and ``init_from`` with paths in place of names, for the ranks of ``run``.

    ``resume`` becomes "auto", "never" or an absolute path, and ``init_from`` a path or ``None``. If
    the run has saved a checkpoint, ``resume`` becomes "auto", so that it continues from there. The
    exceptions are "never" and a checkpoint of the run itself.
    """
    if init_from is not None:
        init_from = str(checkpoint_named(init_from, "init_from", own=run, base=base))
    if resume in (AUTO, NEVER):
        return resume, init_from
    path = checkpoint_named(resume, "resume", own=run, base=base)
    is_own = path.is_relative_to(run.absolute())
    return AUTO if RunFolder(run).has_checkpoint and not is_own else str(path), init_from


def _best_of_all(own: Path | None, base: Path, key: str) -> Path:
    for run in reversed(runs_in(base)):
        if own is not None and run.path.resolve() == own.resolve():
            continue
        if any((run.checkpoint_dir / BEST).glob(_STEPS)):
            return _newest(run.checkpoint_dir / BEST, run.name, key)
    raise ConfigError(
        f"asks for the best checkpoint, and no run in {base} has kept one: train with "
        "extras.keep_best=true, or name a run",
        key=key,
    )


def _file(path: Path, key: str) -> Path:
    if not path.exists():
        # A host with a disk of its own may have checkpoints that are not here.
        if path.is_absolute() and not path.parent.exists():
            return path
        raise ConfigError(f"names a file that is not there: {path}", key=key)
    if path.suffix == ".pt" and not zipfile.is_zipfile(path):
        raise ConfigError(f"names a file that is damaged, or no checkpoint: {path}", key=key)
    return Path(os.path.abspath(path))


def _newest(folder: Path, owner: str, key: str, *, noun: str = "checkpoint") -> Path:
    """Return the newest checkpoint in a folder; ``owner`` and ``noun`` are for the error."""
    checkpoints = [path for path in folder.glob(_STEPS) if not leads_out(path, folder)]
    if not checkpoints:
        raise ConfigError(f"finds no {noun} of {owner}", key=key)
    newest = max(checkpoints, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return Path(os.path.abspath(newest))
