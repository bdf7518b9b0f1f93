"""Saves a trainer and resumes it. Neither a kill nor a full disk costs a good checkpoint.

A checkpoint is a folder ``step-N`` of torch's distributed checkpoints. Its ``.metadata`` is written
last, so a folder without one is an incomplete save. A checkpoint is checked before it is loaded: it
must be complete and of this model. Loading would find that out late, on one rank, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from monarch import ours
from monarch.observe.kept_files import leads_out
from monarch_recipes.checkpoint import CheckpointError

from .config import Degrees, TitanConfig, value_at
from .versions import titan
from .versions.engine import Engine

# The parts of a checkpoint besides the model's parameters, which have no prefix.
_OTHERS = ("optimizer", "lr_scheduler", "dataloader", "train_state")


@dataclass(frozen=True)
class Resumed:
    """The checkpoint from which a training continues, or None, and notes about it for a person."""

    path: Path | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Saved:
    """The result of a save: a complete checkpoint, of `step`, or the reason why it failed.

    Both are empty if none was due, or if it is still being written.
    """

    path: Path | None = None
    step: int = 0
    failure: str = ""


class Checkpointer:
    """Saves a trainer into the run's folder, and resumes it from there."""

    def __init__(self, engine: Engine, config: TitanConfig, degrees: Degrees) -> None:
        self._engine = engine
        self._inner = engine.checkpointer
        self._config = config.checkpoint
        self._degrees = degrees
        self._folder = Path(value_at(config, titan.keys.output), config.checkpoint.folder)
        self._unfinished: int | None = None  # the step

    def load(self) -> Resumed:
        """Load the run's newest complete checkpoint, or that of the config's `load_step`.

        If the run has none, load the initial weights that the config names, if any. Raises
        CheckpointError if the checkpoint is of another model, or cannot be loaded.
        """
        if not self._inner.enable:
            return Resumed(None)
        newest = find_checkpoint(self._folder, self._config.load_step)
        if newest is None:
            # This run has no checkpoint, but the config may name initial weights.
            begins = self._inner.load()
            return Resumed(Path(self._config.initial_load_path) if begins else None)
        state = self._inner.states["model"].state_dict()
        check_model(newest.path, newest.metadata, state, is_whole=self._degrees.pp == 1)
        notes = [f"passed over a checkpoint: {why}" for why in newest.passed_over]
        notes += self._leave_out_data_of_other_degrees(newest)
        try:
            self._inner.load(step=newest.step)
        except CheckpointException as error:  # It is not a subclass of Exception.
            raise CheckpointError(
                f"{newest.path} cannot be loaded: {_first_failure(error)}"
            ) from None
        return Resumed(newest.path, tuple(notes))

    def is_due(self, step: int, is_last: bool) -> bool:
        """Return whether `save_if_due` would save, or report a finished save, after `step`."""
        return self._unfinished is not None or self._inner._should_save(step, is_last)

    def save_if_due(self, step: int, is_last: bool) -> Saved:
        """Save after `step` if that is due; else return a save that has finished in the background.

        The result is empty if there is no such save.
        """
        if self._inner._should_save(step, is_last):
            return self._save(step, is_last)
        return self._finished()

    def save(self) -> Saved:
        """Save a checkpoint to resume from, and return it.

        Does nothing, and returns an empty `Saved`, if the config has checkpoints disabled.
        """
        inner, step = self._inner, self._engine.step
        if not inner.enable or inner.load_only:
            return Saved()
        path = self._path(step)
        if path.joinpath(".metadata").is_file():
            return Saved(path, step)
        # TorchTitan saves between two intervals only at the last step, and then only the weights.
        as_configured = inner.last_save_model_only, inner.last_save_in_hf
        inner.last_save_model_only = inner.last_save_in_hf = False
        try:
            return self._save(step, is_last=True)
        finally:
            inner.last_save_model_only, inner.last_save_in_hf = as_configured

    def _save(self, step: int, is_last: bool) -> Saved:
        path = self._path(step)
        if not self._weights_are_finite():
            return Saved(failure="the weights are not finite; a resumed run would be lost")
        if dist.get_rank() == 0:
            # A checkpoint that will be overwritten does not count from now on, since a kill may
            # leave half of it. No rank writes before rank 0 has planned the save, after this.
            path.joinpath(".metadata").unlink(missing_ok=True)
        try:
            self._inner.save(step, last_step=is_last)
        except CheckpointException as error:
            self._inner.save_future = None  # Each later save would raise its error again.
            if dist.get_rank() == 0:
                # The incomplete files take up the room of the next checkpoint.
                ours.remove_folder(path, path.parent, name=r"step-\d+")
            return Saved(failure=_first_failure(error))
        self._unfinished = step
        return self._finished(is_in_hf=is_last and self._inner.last_save_in_hf)

    def _finished(self, is_in_hf: bool = False) -> Saved:
        """Return the checkpoint whose save began last, once, when it is complete.

        Returns an empty `Saved` while it is still being written in the background.
        """
        step = self._unfinished
        if step is None:
            return Saved()
        path = self._path(step)
        if not (is_in_hf or path.joinpath(".metadata").is_file()):
            return Saved()
        self._unfinished = None
        return Saved(path, step)

    def _weights_are_finite(self) -> bool:
        is_finite = torch.ones((), device=self._engine.device)
        with torch.no_grad():
            for part in self._engine.model_parts:
                for parameter in part.parameters():
                    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                    is_finite *= local.isfinite().all()
        dist.all_reduce(is_finite, dist.ReduceOp.MIN)
        return bool(is_finite)

    def _leave_out_data_of_other_degrees(self, newest: NewestCheckpoint) -> list[str]:
        names = newest.metadata.state_dict_metadata
        # The number of ranks that had their own data; 0 if it is not known.
        num_saved = sum(name.startswith("dataloader.dp_rank_") for name in names)
        num_ranks, inner = self._degrees.data, self._inner
        if num_saved in (0, num_ranks) or "dataloader" in inner.exclude_from_loading:
            return []
        inner.exclude_from_loading = [*inner.exclude_from_loading, "dataloader"]
        return [
            f"the data begins again from its start: {newest.path} was saved by {num_saved} "
            f"data-parallel ranks, here there are {num_ranks}, and TorchTitan cannot reshard data"
        ]

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}"


class NewestCheckpoint(NamedTuple):
    """The newest complete checkpoint of a folder.

    ``passed_over`` says why newer ones cannot be used.
    """

    step: int
    path: Path
    metadata: Metadata
    passed_over: tuple[str, ...]


def find_checkpoint(folder: Path, step: int = -1) -> NewestCheckpoint | None:
    """Return the checkpoint after ``step`` in ``folder``; with -1 the newest complete one.

    The newest is the one written last, not the one of the highest step: a run that resumed from an
    earlier step has later steps on disk.

    Returns None if nothing was saved. Raises CheckpointError if no saved checkpoint can be loaded,
    or if the checkpoint after ``step`` cannot be loaded.
    """
    saved = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"step-(\d+)", path.name))
        and (path / ".metadata").is_file()
        and not leads_out(path / ".metadata", folder)
    }
    if step != -1:
        if step not in saved:
            steps = ", ".join(map(str, sorted(saved))) or "none"
            raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {steps}")
        return NewestCheckpoint(step, saved[step], read_checkpoint(saved[step]), ())
    broken: list[str] = []
    newest_first = sorted(
        saved, key=lambda number: (_saved_at(saved[number]), number), reverse=True
    )
    for number in newest_first:
        try:
            metadata = read_checkpoint(saved[number])
        except CheckpointError as error:
            broken.append(str(error))
            continue
        names = metadata.state_dict_metadata
        if number and not any(name.startswith("train_state") for name in names):
            broken.append(
                f"{saved[number]} holds the weights alone (checkpoint.last_save_model_only)"
            )
            continue
        return NewestCheckpoint(number, saved[number], metadata, tuple(broken))
    if broken:
        raise CheckpointError(
            f"no checkpoint in {folder} can be loaded: " + "; ".join(broken) + ". "
            "Move the folder away to begin again"
        )
    return None


def _saved_at(path: Path) -> int:
    """Return the time in ns at which a checkpoint became complete.

    Returns 0 if it was removed meanwhile.
    """
    try:
        return (path / ".metadata").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read_checkpoint(path: Path) -> Metadata:
    """Return the metadata of a checkpoint.

    Raises CheckpointError if a file is missing or too short.
    """
    try:
        metadata = FileSystemReader(path).read_metadata()
    except Exception as error:  # A pickle that was cut may raise anything.
        raise CheckpointError(
            f"{path}/.metadata cannot be read ({type(error).__name__}: {error})"
        ) from error
    ends: dict[str, int] = {}
    for stored in (metadata.storage_data or {}).values():
        end = stored.offset + stored.length
        ends[stored.relative_path] = max(end, ends.get(stored.relative_path, 0))
    for name, end in ends.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            raise CheckpointError(f"{file} is missing")
        if size < end:
            raise CheckpointError(f"{file} is truncated: {size} of {end} bytes")
    return metadata


def check_model(
    path: Path, metadata: Metadata, state: Mapping[str, Any], *, is_whole: bool
) -> None:
    """Raise CheckpointError unless a checkpoint has the parameters of ``state``, in their shapes.

    ``is_whole`` means that ``state`` is the whole model, not one pipeline stage.
    """
    sizes = {
        name: tuple(stored.size)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata) and name.partition(".")[0] not in _OTHERS
    }
    shapes = {
        name: tuple(value.shape) for name, value in state.items() if isinstance(value, torch.Tensor)
    }
    differences = [
        f"{name} is {sizes[name]} there and {size} here"
        for name, size in shapes.items()
        if name in sizes and sizes[name] != size
    ]
    differences += [f"{name} is only here" for name in shapes if name not in sizes]
    if is_whole:
        differences += [f"{name} is only there" for name in sizes if name not in shapes]
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise CheckpointError(
            f"{path} is a checkpoint of another model: {'; '.join(differences[:3])}{more}. "
            "Change [model] back, or give the run another folder"
        )
