"""Ranks of TorchTitan that share a GPU meet over gloo, as far as that can do what they need."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import ConfigError
from monarch.tools.backends import gpu_of
from monarch_recipes.titan import process
from monarch_recipes.titan.config import Degrees
from monarch_recipes.titan.machine import check_shared_gpus


@pytest.mark.parametrize(
    ("buses", "backend", "why"),
    [({0: 1, 1: 1}, "gloo", "2 ranks share 1 GPU"), ({0: 1, 1: 2}, "nccl", "")],
)
def test_torchtitan_takes_gloo_where_ranks_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, buses: dict[int, int], backend: str, why: str
) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(process.titan, "device_type", "cuda")
    monkeypatch.setattr(dist, "rendezvous", lambda *place: iter([(store, 0, 2)]))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(
            pci_domain_id=0, pci_bus_id=buses[device.index], pci_device_id=0
        ),
    )
    other = dist.PrefixStore("backend", store)
    other.set("gpu of 1", gpu_of(torch.device("cuda", 1)))
    # What TorchTitan looks up its backend in.
    backends = dist.Backend.default_device_backend_map
    before = dict(backends)
    with process.meeting(0) as told:
        assert backends["cuda"] == backend
    assert told.startswith(why)
    assert bool(told) == bool(why)
    assert backends == before


@pytest.mark.parametrize(("pp", "cp", "key"), [(2, 1, "pipeline"), (1, 2, "context")])
def test_what_gloo_cannot_send_from_gpus_is_refused(pp: int, cp: int, key: str) -> None:
    degrees = Degrees(pp=pp, dp_replicate=1, dp_shard=1, cp=cp, tp=1)
    check_shared_gpus(degrees, "")
    with pytest.raises(ConfigError, match="needs a GPU for each rank: 2 ranks share") as refused:
        check_shared_gpus(degrees, "2 ranks share 1 GPU")
    assert refused.value.key == f"parallelism.{key}_parallel_degree"
    check_shared_gpus(Degrees(pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=1), "2 ranks share 1 GPU")
