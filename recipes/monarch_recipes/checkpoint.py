"""Checkpoint files: each is complete, or not there at all.

A checkpoint is written to a temporary file, flushed to the disk, and renamed. So a crash or a full
disk leaves the earlier checkpoints unchanged. Older ones are deleted only after the new one was
read back: its structure before it is renamed, and its whole content afterwards. Reading the content
of a large file takes as long as loading it, so a thread does that.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import threading
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monarch.errors import MonarchError
from monarch.observe.kept_files import leads_out
from monarch.runs.recover.saving import UnsavableState
from monarch.runtime.uninterrupted import Uninterrupted
from monarch.whole_file import OF_PEOPLE, replacing, sync_folder
from monarch_recipes.savable import savable

_NAME = re.compile(r"step-(\d{8,})\.pt")
_UNFINISHED = ".unfinished"
_READ_AT_ONCE_BYTES = 32 * 1024 * 1024  # Reading back so little takes no longer than the save.
_proofs: dict[Path, threading.Thread] = {}  # by folder: the thread that reads its newest file back


class CheckpointError(MonarchError):
    """A file that cannot be used as a checkpoint: missing, damaged, or of another kind."""


class CheckpointMisfit(CheckpointError):
    """The checkpoint is undamaged, but of another model, optimizer or recipe.

    A restart would not help. ``good_generation`` is the last generation of code that fits it, if an
    edit of the code caused this; else None.
    """

    def __init__(self, text: str, good_generation: int | None = None) -> None:
        super().__init__(text)
        self.good_generation = good_generation

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.good_generation)


class CannotWrite(OSError):
    """The operating system refused to write a checkpoint, for example because the disk is full."""

    no_edit_helps = True  # So the run does not hold: it continues without this checkpoint.


class CheckpointsUnreadable(CheckpointError):
    """A run has checkpoints, but none can be read.

    To start anew would lose them, so the run ends.
    """

    no_edit_helps = True  # So the run does not hold: it ends.


@dataclass(frozen=True)
class Checkpoint:
    """The state that was saved after `step` steps: tensors, plain values, and lists and dicts of
    these.
    """

    step: int
    path: Path
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    state: dict[str, Any],
    num_kept: int,
    read_at_once_bytes: int = _READ_AT_ONCE_BYTES,
) -> Path:
    """Write the checkpoint of `step`, and return its path.

    The file is read back, and then all but the newest `num_kept` checkpoints are deleted; for a
    file of more than ``read_at_once_bytes`` a thread does both later. Only one process at a time
    may save into a folder. Raises CannotWrite, or UnsavableState if ``load_checkpoint`` could not
    read the state; both keep all earlier checkpoints. Numbers of numpy are saved as Python's.
    """
    if not folder.parent.exists():  # On a host with its own disk; a run's folder is private.
        os.makedirs(folder.parent, 0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)
    wait_until_read_back(folder)
    state = savable(state)
    for leftover in folder.glob(f"step-*{_UNFINISHED}"):
        leftover.unlink(missing_ok=True)
    path = checkpoint_path(folder, step)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with replacing(path, mode=OF_PEOPLE, is_durable=True, beside=unfinished) as file:
            torch.save(state, file)
            file.flush()
            _check_structure(unfinished)
            _be_newest(unfinished, checkpoint_paths(folder))
    except BaseException as error:
        # If a write fails, torch raises an unrelated RuntimeError; the cause is its context.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            raise CannotWrite(cause.errno, cause.strerror, cause.filename) from None
        raise
    with Uninterrupted():  # Ctrl-C just after the folder was opened would leave it open.
        sync_folder(folder)
    proof = threading.Thread(
        target=_read_back_then_delete, args=(path, num_kept), name="read back", daemon=True
    )
    if path.stat().st_size > read_at_once_bytes:
        _proofs[folder] = proof
        proof.start()
    else:
        proof.run()
    return path


def wait_until_read_back(folder: Path) -> None:
    """Wait until the last checkpoint that this process saved into ``folder`` was read back."""
    proof = _proofs.pop(folder, None)
    if proof is not None:
        proof.join()


def _check_structure(path: Path) -> None:
    """Raise UnsavableState if a file cannot be loaded, without reading the bytes of its tensors."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnsavableState("", "it holds what weights_only does not load") from error


def _read_back_then_delete(path: Path, num_kept: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        damaged = str(error)
    if damaged is not None:
        # Older checkpoints are kept until a newer one can be read back.
        warnings.warn(f"{path} cannot be read back: {damaged}; older ones are kept", stacklevel=1)
        return
    for old in checkpoint_paths(path.parent)[:-num_kept]:
        old.unlink(missing_ok=True)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of ``step``, such as step-00000100.pt."""
    return folder / f"step-{step:08}.pt"


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, the newest last; [] if there is no folder.

    The newest is the one written last, not the one with the highest step: a run that resumed from
    an earlier step has later steps on disk.
    """
    paths = (
        path
        for path in folder.glob("step-*.pt")
        if _NAME.fullmatch(path.name) and not leads_out(path, folder)
    )
    return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU. Raises CheckpointError if it is missing or damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path} is not named like a checkpoint (step-00000100.pt)")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged: {damaged} fails its checksum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        # The original message advises the unsafe way of loading; a checkpoint of ours needs none.
        raise CheckpointError(f"{path} holds more than tensors and plain values") from error
    except (OSError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, and is no checkpoint")
    return Checkpoint(int(match[1]), path, state)


def load_latest_checkpoint(
    folder: Path,
    fits: Callable[[Checkpoint], None] = lambda checkpoint: None,
    skipped: Callable[[str], None] = lambda text: warnings.warn(text, stacklevel=3),
) -> Checkpoint | None:
    """Return the newest readable checkpoint that ``fits`` accepts; None if the folder has none.

    ``fits`` raises CheckpointError for a checkpoint of another model. ``skipped`` is called with a
    text about each newer checkpoint that cannot be used. If ``fits`` refuses all readable
    checkpoints, its error for the newest is raised. If there are checkpoints and none can be read,
    CheckpointsUnreadable is raised, because starting from scratch would lose a run.
    """
    refusal: CheckpointError | None = None
    unreadable: list[str] = []
    for path in reversed(checkpoint_paths(folder)):
        try:
            checkpoint = load_checkpoint(path)
        except CheckpointError as error:
            unreadable.append(str(error))
            skipped(f"skipping a checkpoint: {error}")
            continue
        try:
            fits(checkpoint)
            return checkpoint
        except CheckpointError as error:
            refusal = refusal or error
            skipped(f"skipping a checkpoint: {error}")
    if refusal is not None:
        raise refusal
    if unreadable:
        raise CheckpointsUnreadable(
            f"none of the checkpoints in {folder} can be read: {'; '.join(unreadable)}. They were "
            'left as they are. To begin anew: `--new`, or resume="never"'
        )
    return None


def find_checkpoint(
    wanted: str | Path,
    folder: Path,
    fits: Callable[[Checkpoint], None],
    skipped: Callable[[str], None],
) -> Checkpoint | None:
    """Return the checkpoint to resume from, or None.

    ``wanted`` is "auto" for the latest in ``folder`` that fits, "never" for None, or the path of a
    checkpoint. Raises CheckpointError if that checkpoint cannot be read or does not fit.
    """
    if wanted == "never":
        return None
    if wanted == "auto":
        return load_latest_checkpoint(folder, fits, skipped)
    checkpoint = load_checkpoint(Path(wanted))
    fits(checkpoint)
    return checkpoint


def find_checkpoint_or_newer(
    path: Path | None,
    wanted: str,
    folder: Path,
    fits: Callable[[Checkpoint], None],
    skipped: Callable[[str], None],
) -> Checkpoint | None:
    """Return the checkpoint at ``path``, or the latest of ``folder`` if that cannot be read.

    The file at ``path`` may be gone because newer checkpoints replaced it. Without a path, returns
    what `find_checkpoint` returns for ``wanted``. Returns ``None`` if there is no checkpoint.
    """
    try:
        return find_checkpoint(path or wanted, folder, fits, skipped)
    except CheckpointMisfit:
        raise
    except CheckpointError:
        if path is None:
            raise
        return find_checkpoint("auto", folder, fits, skipped)


def check_model(
    checkpoint: Checkpoint, model: nn.Module, keys: Sequence[str] = (), *, generation: int = 0
) -> None:
    """Raise CheckpointMisfit if a checkpoint is of another model, or lacks one of ``keys``.

    Its message has the first difference. ``generation`` is that of the code that runs here.
    """
    reason = model_difference(checkpoint.state.get("model", {}), model)
    if reason:
        advice, good = _advice(checkpoint, generation, "Give the config")
        raise CheckpointMisfit(f"{checkpoint.path} is of another model: {reason}. {advice}", good)
    if lacking := [key for key in keys if key not in checkpoint.state]:
        raise CheckpointMisfit(f"{checkpoint.path} is of another recipe: it has no {lacking[0]!r}")


def model_difference(saved: dict[str, torch.Tensor], model: nn.Module) -> str:
    """Return the first difference in name or shape between saved weights and a model, as text.

    Returns "" if there is none.
    """
    state = model.state_dict()
    if missing := [name for name in state if name not in saved]:
        return f"it has no {missing[0]!r}"
    if more := [name for name in saved if name not in state]:
        return f"it has {more[0]!r}, which this model has not"
    for name, tensor in state.items():
        saved_shape, shape = tuple(saved[name].shape), tuple(tensor.shape)
        if saved_shape != shape:
            return f"{name!r} has the shape {saved_shape} there, and {shape} here"
    return ""


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a model, by name, from a checkpoint, a safetensors file, or a state_dict.

    Raises CheckpointError if the file cannot be read or has no weights by name.
    """
    try:
        if path.suffix == ".safetensors":
            weights: Any = importlib.import_module("safetensors.torch").load_file(str(path))
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise CheckpointError(
            f"{path} needs safetensors: pip install 'monarch-loop[train]'"
        ) from None
    except Exception as error:  # A file from elsewhere may be wrong in any way.
        why = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {why}") from None
    for name in ("model", "state_dict"):
        if isinstance(weights, dict) and isinstance(weights.get(name), dict):
            weights = weights[name]
            break
    if not isinstance(weights, dict) or not all(map(torch.is_tensor, weights.values())):
        raise CheckpointError(f"{path} holds no weights by name")
    return dict(weights)


def check_weights(path: Path, weights: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Raise CheckpointMisfit, with the first difference, if the weights are of another model."""
    if reason := model_difference(weights, model):
        raise CheckpointMisfit(
            f"the weights in {path} are of another model: {reason}. Where only a part is to be "
            "taken, as without the last layer, load it in build_model instead of by init_from"
        )


def check_optimizer(
    checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, *, generation: int = 0
) -> None:
    """Raise CheckpointMisfit if the checkpoint's optimizer state is of another kind of optimizer.

    ``generation`` is that of the code that runs here.
    """
    reason = optimizer_difference(checkpoint.state["optimizer"], optimizer.state_dict())
    if reason:
        advice, good = _advice(checkpoint, generation, "Take the optimizer")
        raise CheckpointMisfit(
            f"{checkpoint.path} is of another optimizer than {type(optimizer).__name__}: {reason}. "
            f"{advice}",
            good,
        )


def optimizer_difference(saved: dict[str, Any], state: dict[str, Any]) -> str:
    """Return why an optimizer with this ``state`` cannot load the state ``saved``; "" if it can.

    Keys that only ``saved`` lacks are no reason: an older torch did not have them, and the
    optimizer fills them in.
    """
    saved_groups, groups = saved["param_groups"], state["param_groups"]
    if [len(group["params"]) for group in saved_groups] != [
        len(group["params"]) for group in groups
    ]:
        return "its parameters are grouped otherwise"
    for saved_group, group in zip(saved_groups, groups, strict=True):
        lacking = sorted(group.keys() - saved_group.keys())
        if lacking and saved_group.keys() - group.keys():
            return f"it has no {lacking[0]!r}"
    return ""


def _advice(checkpoint: Checkpoint, generation: int, otherwise: str) -> tuple[str, int | None]:
    """Return advice for a checkpoint that does not fit, and the last generation that fits it.

    The generation is None unless the generations show that an edit of the code is the cause.
    ``otherwise`` begins the advice for that case.
    """
    saved_by: int = checkpoint.state.get("generation") or 0
    unfit_since: int = checkpoint.state.get("unfit_since", 0)
    if not saved_by < generation and not 0 < unfit_since <= saved_by == generation:
        words = f'{otherwise} it was trained with, or begin anew: `--new`, or resume="never"'
        return words, None
    good = unfit_since - 1 if unfit_since else saved_by
    if unfit_since or generation == saved_by + 1:
        edit = f"Generation {good + 1} of the code changed what a start builds"
    else:
        edit = (
            f"It was saved by generation {saved_by} of the code, and generation {generation} runs "
            "here: an edit since then changed what a start builds"
        )
    return f"{edit}; take that back, or go back by `monarch sync rollback {good}`", good


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of torch's random generators: of the CPU, and of the GPU if ``device`` is
    one.
    """
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Set torch's random generators to a state that `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _be_newest(path: Path, others: Sequence[Path]) -> None:
    """Set the file's modification time after that of ``others``, if the clock was set back."""
    newest = max((other.stat().st_mtime_ns for other in others), default=0)
    if path.stat().st_mtime_ns <= newest:
        os.utime(path, ns=(newest + 1, newest + 1))
