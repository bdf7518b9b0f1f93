"""Which backend a process group takes: on a fake of torch.cuda, with real stores and real gloo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from monarch.actor import Actor, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env
from monarch.tools.backends import (
    ON_CPUS,
    ON_GPUS,
    agree_on_backend,
    backend_for,
    gpu_of,
    why_not_nccl,
)


def use_gpus(patch: pytest.MonkeyPatch, buses: Sequence[int], *, uuid: str = "") -> None:
    """The visible GPUs of this process, each by its place on the bus; or by its UUID alone, as in
    older versions of torch. Parts of one GPU (MIG) have UUIDs of their own."""

    def properties(device: Any) -> SimpleNamespace:
        number = torch.device(device).index or 0
        if uuid:
            return SimpleNamespace(uuid=f"{uuid}-{buses[number]}")
        return SimpleNamespace(
            pci_domain_id=0, pci_bus_id=buses[number], pci_device_id=0, uuid=f"part-{number}"
        )

    patch.setattr(torch.cuda, "get_device_properties", properties)
    patch.setattr(torch.cuda, "device_count", lambda: len(buses))
    patch.setattr(torch.cuda, "is_available", lambda: bool(buses))


def agreed(devices: Sequence[Any]) -> list[tuple[str, str]]:
    """What ranks on these devices agree on, each a thread, at a real store."""
    store = dist.HashStore()
    found: dict[int, tuple[str, str]] = {}

    def ask(rank: int, device: Any) -> None:
        found[rank] = agree_on_backend(store, rank, len(devices), device)

    ranks = [threading.Thread(target=ask, args=pair) for pair in enumerate(devices)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return [found[rank] for rank in range(len(devices))]


@pytest.mark.parametrize(
    ("buses", "devices", "backend", "why"),
    [
        ([3, 4], ["cuda:0", "cuda:1"], ON_GPUS, ""),
        ([3], ["cuda:0"], ON_GPUS, ""),
        ([3], ["cuda:0", "cuda:0"], ON_CPUS, "2 ranks share 1 GPU, which NCCL refuses"),
        ([3, 4], ["cuda:0", "cuda:1", "cuda:0"], ON_CPUS, "3 ranks share 2 GPUs"),
        # Two parts of one GPU.
        ([3, 3], ["cuda:0", "cuda:1"], ON_CPUS, "2 ranks share 1 GPU"),
        ([3], ["cuda:0", "cpu"], ON_CPUS, "1 of 2 ranks have no GPU"),
        ([], ["cpu", "cpu"], ON_CPUS, ""),
        ([], [None], ON_CPUS, ""),
    ],
)
def test_ranks_agree_by_the_gpus_that_they_really_have(
    monkeypatch: pytest.MonkeyPatch,
    buses: list[int],
    devices: list[str],
    backend: str,
    why: str,
) -> None:
    use_gpus(monkeypatch, buses)
    answers = agreed(devices)
    assert len(set(answers)) == 1
    assert answers[0][0] == backend
    assert answers[0][1].startswith(why)
    assert bool(answers[0][1]) == bool(why)


def test_a_gpu_has_one_name_whatever_number_it_has_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES may give each rank one GPU, which is the first one there."""
    use_gpus(monkeypatch, [7])
    first = gpu_of("cuda:0")
    use_gpus(monkeypatch, [6, 7])
    assert gpu_of("cuda:1") == first
    assert gpu_of("cuda:0") != first
    use_gpus(monkeypatch, [7], uuid="GPU")
    one = gpu_of("cuda:0")
    use_gpus(monkeypatch, [6, 7], uuid="GPU")
    assert gpu_of("cuda:1") == one


def test_gpus_of_two_machines_may_have_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, [7])
    here = gpu_of("cuda:0")
    monkeypatch.setattr("monarch.tools.backends._kernel", lambda: "of another machine")
    assert backend_for([here, gpu_of("cuda:0")]) == ON_GPUS


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    assert why_not_nccl([]) == why_not_nccl(["cpu"] * 3) == why_not_nccl(["a", "b"]) == ""
    assert backend_for([]) == ON_CPUS


class Rank(Actor):
    """Thinks that it has a GPU, the same one as its neighbour."""

    @endpoint
    def meet(self) -> tuple[str, str, float]:
        from datetime import timedelta

        from monarch_recipes.rendezvous import init_group

        properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)
        patch = pytest.MonkeyPatch()
        patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        why = init_group(torch.device("cuda", 0), timedelta(seconds=60))
        value = torch.ones(1)
        dist.all_reduce(value)
        backend = dist.get_backend()
        dist.destroy_process_group()
        patch.undo()
        return backend, why, float(value)


@pytest.mark.long
def test_ranks_that_share_a_gpu_meet_over_gloo() -> None:
    procs = this_host().spawn_procs({"ranks": 2}, preload=["torch"])
    try:
        setup_torch_elastic_env(procs)
        found = list(procs.spawn("rank", Rank).meet.call().get(timeout=100).values())
    finally:
        procs.stop().get()
    why = "2 ranks share 1 GPU, which NCCL refuses: they meet over gloo, which is slower"
    assert found == [("gloo", why, 2.0)] * 2
