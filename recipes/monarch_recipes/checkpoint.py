"""Checkpoints on disk: each one file, whole or not there at all.

A checkpoint is written beside its place, flushed to the disk, and renamed, so that a crash or a
full disk at any moment leaves the ones before as they were. It is read back before older ones are
deleted: what a file holds before it gets its name, and all its bytes afterwards, which takes as
long as reading it, and so is done on a thread where the file is large.
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
_READ_AT_ONCE_BYTES = 32 * 1024 * 1024  # No step waits longer for that than for the save itself.
_proofs: dict[Path, threading.Thread] = {}  # by folder: reads the checkpoint that is the newest


class CheckpointError(MonarchError):
    """A file that is no checkpoint, or a damaged one."""


class CheckpointMisfit(CheckpointError):
    """The checkpoint is sound, but of another model, optimizer or recipe; starting again would not
    help.

    ``good_generation`` is the last generation of code that is known to fit it, if an edit caused
    this.
    """

    def __init__(self, text: str, good_generation: int | None = None) -> None:
        super().__init__(text)
        self.good_generation = good_generation

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.good_generation)


class CannotWrite(OSError):
    """The operating system refused a checkpoint, as where the disk is full."""

    no_edit_helps = True  # so that the run goes on without rather than holds


class CheckpointsUnreadable(CheckpointError):
    """A run has checkpoints, and none of them can be read; to begin again would lose what is in
    them."""

    no_edit_helps = True  # so that the run ends rather than holds


@dataclass(frozen=True)
class Checkpoint:
    """The state that was saved at `step`: tensors, numbers, texts, and lists and dicts of these."""

    step: int
    path: Path
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, state: dict[str, Any], num_kept: int,
    read_at_once_bytes: int = _READ_AT_ONCE_BYTES,
) -> Path:  # fmt: skip
    """Write the checkpoint of `step`; once it was read back, all but the newest `num_kept` are
    deleted. A file of more than ``read_at_once_bytes`` is read back on a thread.

    Only one process at a time may save into a folder. With all earlier checkpoints still in place,
    raises OSError, as on a full disk, and UnsavableState where ``load_checkpoint`` could not read
    it. Numbers of numpy are saved as Python's.
    """
    if not folder.parent.exists():  # On a host with a disk of its own: a run's folder is private.
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
        # Where a write fails, torch complains of its own books; the reason is behind that.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            raise CannotWrite(cause.errno, cause.strerror, cause.filename) from None
        raise
    with Uninterrupted():  # Ctrl-C just after it was opened would leave it open.
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
    """Return when the last checkpoint that was saved here was read back, if any was."""
    proof = _proofs.pop(folder, None)
    if proof is not None:
        proof.join()


def _check_structure(path: Path) -> None:
    """Raise UnsavableState where a file cannot be loaded; its tensors' bytes are not read."""
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
        # A later save says again what is wrong with the disk; older ones stay until one is good.
        warnings.warn(f"{path} cannot be read back: {damaged}; older ones are kept", stacklevel=1)
        return
    for old in checkpoint_paths(path.parent)[:-num_kept]:
        old.unlink(missing_ok=True)


def checkpoint_path(folder: Path, step: int) -> Path:
    """The path of the checkpoint of ``step``."""
    return folder / f"step-{step:08}.pt"


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, the newest last; empty without a folder.

    The newest is the one written last, not the one with the highest step: a run that started again
    or resumed from an earlier step leaves later steps behind.
    """
    found = (
        path
        for path in folder.glob("step-*.pt")
        if _NAME.fullmatch(path.name) and not leads_out(path, folder)
    )
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint onto the CPU; CheckpointError when it is missing or damaged."""
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
    """Return the newest readable checkpoint that ``fits`` accepts; ``None`` if the folder has none.

    ``fits`` raises CheckpointError for a checkpoint of another model. ``skipped`` is called with a
    text about each newer checkpoint that cannot be used. If ``fits`` refuses all readable
    checkpoints, raises its error for the newest; if none can be read, raises CheckpointsUnreadable,
    because starting from scratch would lose a run.
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
    """Return the checkpoint to resume from: ``auto`` is the latest of ``folder`` that fits,
    ``never`` is none.

    Any other text is the path of a checkpoint that must exist and fit.
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
    """Return the checkpoint at ``path``; if it was replaced by newer checkpoints or cannot be read,
    the latest of ``folder``. Without a path, the checkpoint that ``wanted`` names.
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
    """Raise CheckpointMisfit, with the first difference, if it is not of such a model, or not of a
    recipe that saves something under each of ``keys``. ``generation`` is that of the code here."""
    reason = model_difference(checkpoint.state.get("model", {}), model)
    if reason:
        what_now, good = _what_now(checkpoint, generation, "Give the config")
        raise CheckpointMisfit(f"{checkpoint.path} is of another model: {reason}. {what_now}", good)
    if lacking := [key for key in keys if key not in checkpoint.state]:
        raise CheckpointMisfit(f"{checkpoint.path} is of another recipe: it has no {lacking[0]!r}")


def model_difference(saved: dict[str, torch.Tensor], model: nn.Module) -> str:
    """The first thing in which saved weights are not those of such a model, or nothing."""
    wanted = model.state_dict()
    if missing := [name for name in wanted if name not in saved]:
        return f"it has no {missing[0]!r}"
    if more := [name for name in saved if name not in wanted]:
        return f"it has {more[0]!r}, which this model has not"
    for name, tensor in wanted.items():
        if saved[name].shape != tensor.shape:
            there, here = tuple(saved[name].shape), tuple(tensor.shape)
            return f"{name!r} has the shape {there} there, and {here} here"
    return ""


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a model, by name: of a checkpoint, of safetensors, or of what ``torch.save``
    wrote of a ``state_dict``. Raises CheckpointError."""
    try:
        if path.suffix == ".safetensors":
            found: Any = importlib.import_module("safetensors.torch").load_file(str(path))
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise CheckpointError(
            f"{path} needs safetensors: pip install 'monarch-loop[train]'"
        ) from None
    except Exception as error:  # A file from elsewhere may be wrong in any way.
        why = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {why}") from None
    for name in ("model", "state_dict"):
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
            break
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise CheckpointError(f"{path} holds no weights by name")
    return dict(found)


def check_weights(path: Path, weights: dict[str, torch.Tensor], model: nn.Module) -> None:
    """Raise CheckpointMisfit, with the first difference, where they are not of such a model."""
    if reason := model_difference(weights, model):
        raise CheckpointMisfit(
            f"the weights in {path} are of another model: {reason}. Where only a part is to be "
            "taken, as without the last layer, load it in build_model instead of by init_from"
        )


def check_optimizer(
    checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, *, generation: int = 0
) -> None:
    """Raise CheckpointMisfit if what it has of the optimizer is of another kind of optimizer."""
    reason = optimizer_difference(checkpoint.state["optimizer"], optimizer.state_dict())
    if reason:
        what_now, good = _what_now(checkpoint, generation, "Take the optimizer")
        raise CheckpointMisfit(
            f"{checkpoint.path} is of another optimizer than {type(optimizer).__name__}: {reason}. "
            f"{what_now}",
            good,
        )


def optimizer_difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first thing that a state lacks which an optimizer of the other state needs, or nothing.

    One that only has less is of an older torch, which fills in the rest.
    """
    saved, wanted = there["param_groups"], here["param_groups"]
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in wanted]:
        return "its parameters are grouped otherwise"
    for before, after in zip(saved, wanted, strict=True):
        lacking = sorted(after.keys() - before.keys())
        if lacking and before.keys() - after.keys():
            return f"it has no {lacking[0]!r}"
    return ""


def _what_now(checkpoint: Checkpoint, generation: int, otherwise: str) -> tuple[str, int | None]:
    """Advice in words; and the last generation that fits the checkpoint, where the numbers tell
    that an edit did it."""
    before: int = checkpoint.state.get("generation") or 0
    unfit_since: int = checkpoint.state.get("unfit_since", 0)
    if not before < generation and not 0 < unfit_since <= before == generation:
        words = f'{otherwise} it was trained with, or begin anew: `--new`, or resume="never"'
        return words, None
    good = unfit_since - 1 if unfit_since else before
    if unfit_since or generation == before + 1:
        edit = f"Generation {good + 1} of the code changed what a start builds"
    else:
        edit = (
            f"It was saved by generation {before} of the code, and generation {generation} runs "
            "here: an edit since then changed what a start builds"
        )
    return f"{edit}; take that back, or go back by `monarch sync rollback {good}`", good


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the generators that this process draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """The reverse of `random_state`."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _be_newest(path: Path, others: Sequence[Path]) -> None:
    """See to it that a file counts as written after ``others``, even if the clock was set back."""
    newest = max((other.stat().st_mtime_ns for other in others), default=0)
    if path.stat().st_mtime_ns <= newest:
        os.utime(path, ns=(newest + 1, newest + 1))
