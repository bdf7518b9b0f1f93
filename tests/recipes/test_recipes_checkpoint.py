from __future__ import annotations

import collections
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from monarch.runs.recover.saving import UnsavableState
from monarch_recipes import checkpoint
from monarch_recipes.checkpoint import (
    CheckpointError,
    CheckpointsUnreadable,
    check_model,
    checkpoint_paths,
    find_checkpoint_or_newer,
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
    wait_until_read_back,
)
from tests.support import open_files


def state(step: int) -> dict[str, Any]:
    weights = torch.arange(1000, dtype=torch.float32) + step
    return {"step": step, "model": {"weights": weights}, "random_states": [weights[:5]]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def two(folder: Path) -> Path:
    save_checkpoint(folder, 10, state(10), num_kept=3)
    return save_checkpoint(folder, 20, state(20), num_kept=3)


def test_what_was_saved_is_loaded(folder: Path) -> None:
    path = save_checkpoint(folder, 7, state(7), num_kept=3)
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.path, loaded.state["step"]) == (7, path, 7)
    assert torch.equal(loaded.state["model"]["weights"], state(7)["model"]["weights"])
    assert names(folder) == ["step-00000007.pt"]


def test_only_the_newest_are_kept(folder: Path) -> None:
    for step in range(5):
        save_checkpoint(folder, step, state(step), num_kept=2)
    assert names(folder) == ["step-00000003.pt", "step-00000004.pt"]


def test_the_newest_is_the_one_written_last_not_that_of_the_highest_step(two: Path) -> None:
    os.utime(two, ns=(0, 0))
    save_checkpoint(two.parent, 5, state(5), num_kept=2)
    latest = load_latest_checkpoint(two.parent)
    assert latest is not None
    assert latest.step == 5
    assert names(two.parent) == ["step-00000005.pt", "step-00000010.pt"]


def test_files_of_other_names_are_neither_read_nor_deleted(two: Path) -> None:
    other = two.parent / "step-best.pt"
    other.write_text("mine")
    save_checkpoint(two.parent, 30, state(30), num_kept=1)
    assert names(two.parent) == ["step-00000030.pt", "step-best.pt"]


def test_without_a_folder_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_paths(tmp_path / "nowhere") == []
    assert load_latest_checkpoint(tmp_path / "nowhere") is None


def test_a_truncated_checkpoint_is_skipped_with_a_warning(two: Path) -> None:
    for size in (two.stat().st_size - 1, two.stat().st_size // 2, 10, 0):
        os.truncate(two, size)
        with pytest.warns(UserWarning, match=r"skipping a checkpoint: .*step-00000020\.pt"):
            latest = load_latest_checkpoint(two.parent)
        assert latest is not None
        assert latest.step == 10


def test_a_flipped_bit_is_noticed(two: Path) -> None:
    content = bytearray(two.read_bytes())
    content[content.index(state(20)["model"]["weights"].numpy().tobytes()) + 100] ^= 1
    two.write_bytes(content)
    with pytest.raises(CheckpointError, match="fails its checksum"):
        load_checkpoint(two)


def test_nothing_but_damaged_checkpoints_is_an_error_that_names_them(two: Path) -> None:
    for path in checkpoint_paths(two.parent):
        path.write_bytes(b"not a checkpoint")
    told: list[str] = []
    with pytest.raises(CheckpointsUnreadable, match=r"00000020\.pt cannot.*00000010\.pt.*--new"):
        load_latest_checkpoint(two.parent, skipped=told.append)
    assert len(told) == 2
    assert names(two.parent) == ["step-00000010.pt", "step-00000020.pt"]


def test_a_checkpoint_that_a_group_should_go_on_from_and_cannot_read_leads_to_an_older(
    two: Path,
) -> None:
    two.write_bytes(b"not a checkpoint")
    told: list[str] = []
    found = find_checkpoint_or_newer(two, "auto", two.parent, lambda one: None, told.append)
    assert found is not None
    assert found.step == 10


NUMBERS = {
    "float64": np.float64(0.5), "int64": np.int64(3), "bool_": np.bool_(True),
    "float32": np.float32(0.5), "0-d": np.array(0.5), "text": np.str_("a"),
    "long": np.longdouble(0.5),
}  # fmt: skip


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_numpy_are_saved_as_those_of_python(folder: Path, kind: str) -> None:
    number = NUMBERS[kind]
    model = nn.Linear(2, 1)
    saved = {"a": {"lr": [number, (number, 1)]}, "model": model.state_dict()}
    saved["keys"] = {} if isinstance(number, np.ndarray) else {number: 1}
    loaded = load_checkpoint(save_checkpoint(folder, 1, saved, 3)).state
    (first, (second, _)) = loaded["a"]["lr"]
    assert first == second == number
    assert type(first).__module__ == "builtins"
    assert all(type(key).__module__ == "builtins" for key in loaded["keys"])
    assert saved["a"]["lr"][0] is number  # what trains keeps its own
    assert isinstance(loaded["model"], dict)


class Own:
    pass


def tensor_with(value: Any) -> torch.Tensor:
    tensor = torch.ones(1)
    tensor.note = value  # type: ignore[attr-defined]
    return tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "function": ({"param_groups": [{"lr": 1, "fn": lambda: 1}]}, r"optimizer.param_groups\[0\].fn"),
    "object": ({"state": {0: {"own": Own()}}}, r"optimizer.state\[0\].own"),
    "array": ({"betas": np.zeros(2)}, r"optimizer.betas is a numpy.ndarray.*a tensor could"),
    "path": ({"a b": Path("a")}, r"optimizer\['a b'\]"),
    "default": ({"d": collections.defaultdict(list)}, r"optimizer.d is a collections.defaultdict"),
    "deque": ({"d": [collections.deque()]}, r"optimizer.d\[0\] is a collections.deque"),
    "key": ({Path("a"): 1}, r"a key of optimizer"),
    "attribute": ({"t": tensor_with(Path("a"))}, r"optimizer.t.note"),
    "date": ({"d": np.datetime64("2020-01-01")}, r"optimizer.d is a numpy.datetime64"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_not_be_read_is_refused_by_the_name_of_its_key(two: Path, kind: str) -> None:
    value, words = REFUSED[kind]
    with pytest.raises(UnsavableState, match=words) as caught:
        save_checkpoint(two.parent, 30, {"step": 30, "optimizer": value}, num_kept=1)
    assert names(two.parent) == ["step-00000010.pt", "step-00000020.pt"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_containers_that_hold_each_other_or_are_shared_stay_so(folder: Path) -> None:
    shared = [np.float64(1)]
    circle: list[Any] = []
    circle.append(circle)
    saved = {"one": shared, "two": shared, "circle": circle}
    loaded = load_checkpoint(save_checkpoint(folder, 1, saved, 3)).state
    assert loaded["one"] is loaded["two"]
    assert loaded["circle"][0] is loaded["circle"]


@pytest.mark.parametrize("is_large", [False, True])
def test_older_ones_are_not_deleted_before_the_new_one_was_read_back(
    two: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """Small ones at once, large ones on a thread beside the training."""
    save = partial(save_checkpoint, read_at_once_bytes=0) if is_large else save_checkpoint
    real = os.replace

    def spoilt(unfinished: Path, path: Path) -> None:
        content = bytearray(unfinished.read_bytes())
        content[content.index(state(30)["model"]["weights"].numpy().tobytes()) + 100] ^= 1
        unfinished.write_bytes(content)
        real(unfinished, path)

    told: list[str] = []
    monkeypatch.setattr(checkpoint.warnings, "warn", lambda text, **how: told.append(text))
    monkeypatch.setattr(os, "replace", spoilt)
    save(two.parent, 30, state(30), num_kept=1)
    wait_until_read_back(two.parent)
    assert len(names(two.parent)) == 3
    assert "step-00000030.pt cannot be read back" in told[0]
    monkeypatch.setattr(os, "replace", real)
    save(two.parent, 40, state(40), num_kept=1)
    wait_until_read_back(two.parent)
    assert names(two.parent) == ["step-00000040.pt"]


def test_a_checkpoint_that_would_run_code_is_refused(two: Path) -> None:
    torch.save({"step": 20, "surprise": Path("a")}, two)
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values"):
        load_checkpoint(two)


def test_loading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path / "step-00000001.pt")
    with pytest.raises(CheckpointError, match="is not named like a checkpoint"):
        load_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_disk_error_leaves_the_earlier_checkpoints(
    two: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def half_written(_: object, file: Any) -> None:
        file.write(b"x" * 100)
        full()

    if moment == "write":
        monkeypatch.setattr(torch, "save", half_written)
    else:
        monkeypatch.setattr(os, moment, full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(two.parent, 30, state(30), num_kept=1)
    monkeypatch.undo()
    assert names(two.parent) == ["step-00000010.pt", "step-00000020.pt"]
    assert load_checkpoint(two).step == 20


def test_a_writer_that_was_killed_leaves_nothing_that_is_read_or_stays(two: Path) -> None:
    (two.parent / "step-00000030.pt.unfinished").write_bytes(two.read_bytes()[:100])
    latest = load_latest_checkpoint(two.parent)
    assert latest is not None
    assert latest.step == 20
    save_checkpoint(two.parent, 40, state(40), num_kept=5)
    assert len(names(two.parent)) == 3


def test_the_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(CheckpointError("gone")))) == "gone"


SAVES_TOO_MUCH = """
import resource, signal, sys
from pathlib import Path
import torch
from monarch_recipes.checkpoint import save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(Path(sys.argv[1]), 30, {"weights": torch.zeros(1_000_000)}, 1)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.long
def test_what_the_kernel_refuses_to_write_is_told_as_it_says_it(two: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVES_TOO_MUCH, str(two.parent)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("File too large\n", 0), done.stderr
    assert names(two.parent) == ["step-00000010.pt", "step-00000020.pt"]


def test_a_checkpoint_of_another_model_is_told_by_the_first_difference(folder: Path) -> None:
    model = nn.Linear(3, 2)
    save_checkpoint(folder, 10, {"model": model.state_dict()}, num_kept=3)
    found = load_checkpoint(folder / "step-00000010.pt")
    check_model(found, nn.Linear(3, 2))
    with pytest.raises(
        CheckpointError, match=r"'weight' has the shape \(2, 3\) there, and \(2, 4\)"
    ):
        check_model(found, nn.Linear(4, 2))
    with pytest.raises(CheckpointError, match="has 'bias', which this model has not"):
        check_model(found, nn.Linear(3, 2, bias=False))
    with pytest.raises(CheckpointError, match=r"it has no '0\.weight'"):
        check_model(found, nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(CheckpointError, match=r"is of another recipe: it has no 'progress'"):
        check_model(found, nn.Linear(3, 2), ["model", "progress"])


def test_a_file_of_something_else(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "step-00000010.pt"
    torch.save(torch.ones(3), path)
    with pytest.raises(CheckpointError, match="holds a Tensor, and is no checkpoint"):
        load_checkpoint(path)


def test_the_newest_that_fits_is_taken_and_none_that_does_not(folder: Path) -> None:
    small, large = nn.Linear(3, 2), nn.Linear(4, 2)
    save_checkpoint(folder, 10, {"model": small.state_dict()}, num_kept=3)
    save_checkpoint(folder, 20, {"model": large.state_dict()}, num_kept=3)
    told: list[str] = []
    found = load_latest_checkpoint(folder, lambda one: check_model(one, small), told.append)
    assert found is not None
    assert found.step == 10
    assert len(told) == 1
    assert "step-00000020.pt is of another model" in told[0]
    with pytest.raises(CheckpointError, match=r"step-00000020\.pt is of another model"):
        load_latest_checkpoint(folder, lambda one: check_model(one, nn.Linear(5, 2)), told.append)


def test_a_clock_that_was_set_back_costs_no_checkpoint(two: Path) -> None:
    in_an_hour = time.time_ns() + 3600 * 10**9
    os.utime(two, ns=(in_an_hour, in_an_hour))
    for step in (30, 40):
        assert save_checkpoint(two.parent, step, state(step), num_kept=1).exists()
    latest = load_latest_checkpoint(two.parent)
    assert latest is not None
    assert latest.step == 40
    assert names(two.parent) == ["step-00000040.pt"]


def test_a_save_that_is_interrupted_leaves_no_descriptor_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def open_interrupted(path: Any, *arguments: Any, **named: Any) -> int:
        descriptor = really_open(path, *arguments, **named)
        if path == tmp_path:
            signal.raise_signal(signal.SIGINT)
        return descriptor

    monkeypatch.setattr(os, "open", open_interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, {"step": 1}, 3)
    assert str(tmp_path) not in open_files()


def test_a_checkpoint_that_is_a_link_out_of_its_folder_is_none(tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "other", 7, {"step": 7}, 3)
    folder = tmp_path / "mine"
    save_checkpoint(folder, 3, {"step": 3}, 3)
    (folder / other.name).symlink_to(other)
    checkpoint = load_latest_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 3
    save_checkpoint(folder, 4, {"step": 4}, 1)
    assert other.exists()
