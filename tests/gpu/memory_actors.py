"""Actors with tensors on real GPUs."""

from __future__ import annotations

import os
from typing import Any

import torch

from monarch.actor import Actor, endpoint
from monarch.rdma import RDMABuffer, SharedStateDict
from monarch.rdma.memory.gpu import gpu


class Owner(Actor):
    def __init__(self, device: int = 0, seed: int = 0) -> None:
        self.device = torch.device("cuda", device)
        self.tensors: dict[str, Any] = {}

    @endpoint
    def make(self, name: str, count: int, view: str = "", dtype: str = "float32") -> RDMABuffer:
        """A tensor of numbers, and a view of it as in ".reshape(4, -1).t()"."""
        made = torch.arange(count, device=self.device).to(getattr(torch, dtype))
        self.tensors[name] = eval(f"made{view}", {"made": made})
        return RDMABuffer(self.tensors[name])

    @endpoint
    def values(self, name: str) -> Any:
        return self.tensors[name].tolist()

    @endpoint
    def compute(self, name: str, value: float) -> None:
        """Have the GPU compute for a while, on a stream of its own that the current one then
        follows, and fill the tensor; nobody waits for it."""
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            busy = torch.randn(4096, 4096, device=self.device)
            for _ in range(40):
                busy = busy @ busy / 4096
            self.tensors[name].copy_(torch.full_like(self.tensors[name], value) + 0 * busy[0, 0])
        torch.cuda.current_stream(self.device).wait_stream(stream)

    @endpoint
    def free(self, name: str) -> None:
        del self.tensors[name]
        torch.cuda.empty_cache()

    @endpoint
    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    @endpoint
    def share(self, name: str) -> tuple[list[Any], int, str]:
        """The handle of its storage, where it begins here, and its device's name."""
        storage = self.tensors[name].untyped_storage()
        device = gpu().device_of(storage)
        return gpu().share(storage), gpu().address_of(storage), gpu().devices()[device]


class Reader(Actor):
    def __init__(self, device: int = 0) -> None:
        self.device = torch.device("cuda", device)

    @endpoint
    def read(self, buffer: RDMABuffer, count: int, where: str) -> tuple[list[float], str]:
        device = self.device if where == "cuda" else torch.device("cpu")
        into = torch.full((count,), -1.0, device=device)
        buffer.read_into(into).get()
        return into.tolist(), buffer.backend

    @endpoint
    def write(self, buffer: RDMABuffer, count: int, value: float) -> str:
        given = torch.full((count,), value, device=self.device)
        buffer.write_from(given).get()
        return buffer.backend

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Publisher(Actor):
    def __init__(self, name: str, device: int = 0) -> None:
        self.shared = SharedStateDict(name)
        self.state = {
            key: torch.zeros(shape, dtype=torch.bfloat16, device=torch.device("cuda", device))
            for key, shape in {"a": (256, 512), "b": (17,), "c": (64, 3, 5)}.items()
        }

    @endpoint
    def publish(self, version: int) -> int:
        for number, tensor in enumerate(self.state.values()):
            tensor.fill_(version + number / 4)
        return self.shared.publish(self.state).get()


class Follower(Actor):
    def __init__(self, name: str, where: str, dtype: str = "bfloat16", device: int = 0) -> None:
        self.shared = SharedStateDict(name)
        on = torch.device("cuda", device) if where == "cuda" else torch.device("cpu")
        self.state = {
            key: torch.zeros(shape, dtype=getattr(torch, dtype), device=on)
            for key, shape in {"a": (256, 512), "b": (17,), "c": (64, 3, 5)}.items()
        }

    @endpoint
    def fetch(self, version: int) -> list[tuple[float, float]]:
        """The least and the largest of each."""
        assert self.shared.fetch(self.state, version=version).get() >= version
        return [(float(one.min()), float(one.max())) for one in self.state.values()]

    @endpoint
    def fetch_many(self, times: int) -> list[float]:
        """The versions seen, of tensors that hold one value each."""
        seen = []
        for _ in range(times):
            self.shared.fetch(self.state).get()
            low, high = (float(f(self.state["a"].flatten())) for f in (torch.min, torch.max))
            assert low == high
            seen.append(low)
        return seen
