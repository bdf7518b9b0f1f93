"""TorchTitan's checkpoints, looked at before they are loaded: are they whole, and of this model?

A checkpoint is a folder ``step-N`` of torch's distributed checkpoints. Its ``.metadata`` is written
last, so a folder without one is a save that was cut short. What is checked here is what loading
would find out late, on one rank, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from monarch_recipes.checkpoint import CheckpointError

__all__ = ["Found", "check_model", "find_checkpoint", "num_data_ranks", "read_checkpoint"]

# What a checkpoint holds besides the model's parameters, which have no prefix.
_OTHERS = ("optimizer", "lr_scheduler", "dataloader", "train_state")


class Found(NamedTuple):
    """The newest whole checkpoint of a folder, and what is wrong with newer ones."""

    step: int
    path: Path
    metadata: Metadata
    passed_over: tuple[str, ...]


def find_checkpoint(folder: Path, step: int = -1) -> Found | None:
    """The checkpoint after ``step`` in ``folder``; with -1 the newest that is whole.

    Returns None where nothing was ever saved. Raises CheckpointError where nothing that was saved
    can be loaded, or the one that was asked for cannot.
    """
    saved = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"step-(\d+)", path.name)) and (path / ".metadata").is_file()
    }
    if step != -1:
        if step not in saved:
            known = ", ".join(map(str, sorted(saved))) or "none"
            raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {known}")
        return Found(step, saved[step], read_checkpoint(saved[step]), ())
    broken: list[str] = []
    for number in sorted(saved, reverse=True):
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
        return Found(number, saved[number], metadata, tuple(broken))
    if broken:
        raise CheckpointError(
            f"no checkpoint in {folder} can be loaded: " + "; ".join(broken) + ". "
            "Move the folder away to begin again"
        )
    return None


def read_checkpoint(path: Path) -> Metadata:
    """What a checkpoint holds. Raises CheckpointError if one of its files is short or gone."""
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

    ``is_whole`` says that ``state`` is all of the model, and not the stage of a pipeline.
    """
    sizes = {
        name: tuple(stored.size)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata) and name.partition(".")[0] not in _OTHERS
    }
    wanted = {
        name: tuple(value.shape) for name, value in state.items() if isinstance(value, torch.Tensor)
    }
    differences = [
        f"{name} is {sizes[name]} there and {size} here"
        for name, size in wanted.items()
        if name in sizes and sizes[name] != size
    ]
    differences += [f"{name} is only here" for name in wanted if name not in sizes]
    if is_whole:
        differences += [f"{name} is only there" for name in sizes if name not in wanted]
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise CheckpointError(
            f"{path} is a checkpoint of another model: {'; '.join(differences[:3])}{more}. "
            "Change [model] back, or give the run another folder"
        )


def num_data_ranks(metadata: Metadata) -> int:
    """How many ranks had data of their own when a checkpoint was saved; 0 if it does not say."""
    names = metadata.state_dict_metadata
    return sum(name.startswith("dataloader.dp_rank_") for name in names)
