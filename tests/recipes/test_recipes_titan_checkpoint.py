"""Distributed checkpoints, looked at before they are loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import tests.recipes.titan_support  # noqa: F401
from monarch_recipes.checkpoint import CheckpointError
from monarch_recipes.titan.checkpoints import check_model, find_checkpoint, read_checkpoint

MODEL = {"layer.weight": torch.zeros(4, 4), "layer.bias": torch.zeros(4)}


def save(folder: Path, step: int, model: Mapping[str, torch.Tensor] = MODEL) -> Path:
    path = folder / f"step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        state = {**model, "train_state": {"step": torch.tensor(step)}}
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def data_file(path: Path) -> Path:
    [file] = path.glob("*.distcp")
    return file


def test_nothing_was_saved(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "nowhere") is None


def test_the_newest_is_found(tmp_path: Path) -> None:
    save(tmp_path, 9)
    path = save(tmp_path, 10)
    (tmp_path / "step-11").mkdir()  # a save that was cut short
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.path, found.passed_over) == (10, path, ())


def test_the_newest_is_the_one_written_last(tmp_path: Path) -> None:
    """A run that began at an earlier step has saved beside what it gave up."""
    for step in (100, 200, 150):
        os.utime(save(tmp_path, step) / ".metadata", ns=(0, step if step != 150 else 300))
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 150


@pytest.mark.parametrize("damage", ["short", "gone", "metadata"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    if damage == "short":
        file = data_file(path)
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "gone":
        data_file(path).unlink()
    else:
        (path / ".metadata").write_bytes(b"\x80")
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert len(found.passed_over) == 1
    assert "step-2" in found.passed_over[0]
    with pytest.raises(CheckpointError, match="step-2"):
        find_checkpoint(tmp_path, 2)


def test_where_none_can_be_loaded_nothing_begins_anew(tmp_path: Path) -> None:
    data_file(save(tmp_path, 1)).unlink()
    with pytest.raises(CheckpointError, match="Move the folder away"):
        find_checkpoint(tmp_path)


def test_weights_alone_are_nothing_to_go_on_from(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(MODEL), checkpoint_id=tmp_path / "step-2", no_dist=True)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert "weights alone" in found.passed_over[0]


def test_another_model_is_told_by_its_parameters(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    metadata = read_checkpoint(path)
    check_model(path, metadata, MODEL, is_whole=True)
    stage = {"layer.weight": MODEL["layer.weight"]}
    check_model(path, metadata, stage, is_whole=False)
    with pytest.raises(CheckpointError, match=r"layer\.bias is only there"):
        check_model(path, metadata, stage, is_whole=True)
    with pytest.raises(CheckpointError, match=r"layer.bias is \(4,\) there and \(5,\) here"):
        check_model(path, metadata, {"layer.bias": torch.zeros(5)}, is_whole=False)
    with pytest.raises(CheckpointError, match="other is only here"):
        check_model(path, metadata, {"other": torch.zeros(5)}, is_whole=False)
