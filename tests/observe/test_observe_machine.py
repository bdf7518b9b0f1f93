"""What a machine says of its GPUs, with a stand-in for NVIDIA's library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from monarch.cli.run import run_target
from monarch.runtime.observe import machine_state
from monarch.runtime.observe.machine_state import num_visible_gpus

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle].encode(),
    )
    monkeypatch.setattr(machine_state, "_nvml", lambda: nvml)


@pytest.mark.parametrize(
    ("visible", "num"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("2,0", 2),
        ("0,1,9,2", 2),  # CUDA stops at the first that is not there
        ("0,-1,1", 1),
        ("0,0,1", 0),  # one that is there twice leaves none
        ("1, 3", 2),
        (" ", 0),
        ("-1", 0),
        ("-1,0", 0),
        ("2nd,0", 2),  # what comes after the digits does not count
        ("0,GPU-bb33", 1),  # one kind of names
        ("GPU-bb33,0", 1),
        ("GPU-bb33,GPU-zz", 1),
        ("GPU-bb33,GPU-bb33", 0),
        ("GPU-bb33,GPU-bb", 0),  # the same
        ("MIG-aa,MIG-bb", 1),  # a process sees one part
        ("all", 0),
        ("GPU-bb33, GPU-aa1", 2),
        ("GPU-aa", 0),  # it may be either
        ("MIG-GPU-aa11/1/0", 1),
        ("NoDevFiles", 0),
    ],
)
def test_gpus_are_counted_as_cuda_does(four_gpus: None, visible: str | None, num: int) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert num_visible_gpus(environment) == num


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_state, "_nvml", lambda: None)
    assert num_visible_gpus({}) == 0


@pytest.mark.parametrize(("visible", "num"), [("1,2,3", 3), ("", 2)])
def test_a_run_has_a_proc_for_each_gpu(
    four_gpus: None, visible: str, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert run_target.find_target(None, attach=False).procs_per_host == num
    assert run_target.find_target(1, attach=False).procs_per_host == 1
