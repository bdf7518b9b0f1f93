"""Trainers and readers of a shared state dict, in procs of their own."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.rdma import SharedStateDict
from monarch.testing.fake_gpu import gpu_of_tests

SHAPES = {"embed": (10, 6), "layer.weight": (6, 8), "layer.bias": (8,), "scale": ()}


def numbered(shape: tuple[int, ...], version: int) -> Any:
    """A tensor whose elements say where they belong, and to which version."""
    import math

    import torch

    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) + 1000 * version


class Trainer(Actor):
    """Rank ``rank`` of ``num_ranks``; with a process group, its tensors are DTensors."""

    def __init__(self, name: str, rank: int, num_ranks: int, far: str = "") -> None:
        self.shared = SharedStateDict(name)
        self.rank, self.num_ranks = rank, num_ranks
        act_as_host(far)

    @endpoint
    def publish(self, version: int) -> int:
        state = {key: numbered(shape, version) for key, shape in SHAPES.items()}
        done = self.shared.publish(state, rank=self.rank, num_ranks=self.num_ranks)
        return done.get(timeout=60)

    @endpoint
    def prepare_on_gpu(self) -> tuple[int, int]:
        """How many mappings are pinned then, and how much room the GPU has lost."""
        world = gpu_of_tests()
        before = world.free_bytes(0)
        state = {key: world.tensor(numbered(shape, 0)) for key, shape in SHAPES.items()}
        self.shared.prepare(state, rank=self.rank, num_ranks=self.num_ranks).get(timeout=60)
        return world.num_pinned, before - world.free_bytes(0)

    @endpoint
    def publish_on_gpu(self, version: int, free_bytes: int = 2**40) -> dict[str, int]:
        """The copies that it took. Tensors are strided, as transposed ones are."""
        world = gpu_of_tests()
        world.free_bytes = lambda device: free_bytes  # type: ignore[method-assign]
        state = {}
        for key, shape in SHAPES.items():
            values = numbered(shape, version)
            is_matrix = values.ndim == 2
            made = world.tensor(values.t().contiguous() if is_matrix else values)
            state[key] = made.t() if is_matrix else made
        world.copies.clear()
        done = self.shared.publish(state, rank=self.rank, num_ranks=self.num_ranks)
        assert done.get(timeout=60) == version
        return dict(world.copies)

    @endpoint
    def publish_filled_on_gpu(self, versions: int, num_elements: int) -> None:
        import torch

        tensor = gpu_of_tests().tensor(torch.zeros(num_elements))
        for version in range(1, versions + 1):
            tensor.fill_(float(version))
            self.shared.publish({"w": tensor}).get(timeout=60)

    @endpoint
    def publish_sharded(self, version: int, sizes: tuple[int, ...]) -> int:
        state = {
            key: sharded(numbered(shape, version), sizes, dims=(0, 0))
            for key, shape in SHAPES.items()
        }
        done = self.shared.publish(state, rank=self.rank, num_ranks=self.num_ranks)
        return done.get(timeout=60)

    @endpoint
    def publish_filled_once(self, version: int, num_elements: int) -> None:
        import torch

        self.shared.publish({"w": torch.full((num_elements,), float(version))}).get(timeout=60)

    @endpoint
    def publish_filled(self, versions: int, num_elements: int) -> None:
        import torch

        for version in range(1, versions + 1):
            state = {"w": torch.full((num_elements,), float(version))}
            self.shared.publish(state, rank=self.rank, num_ranks=self.num_ranks).get(timeout=60)

    @endpoint
    def be_impatient(self) -> None:
        """Wait for readers of a half for a moment only."""
        from monarch.rdma.weights.slab import Slab

        Slab.patience_seconds = 0.2

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def publish_and_die(self, version: int) -> None:
        """Die when half of the tensors have been copied."""
        from monarch.rdma.weights import state_dict

        state = {key: numbered(shape, version) for key, shape in SHAPES.items()}
        state_dict.view_of = dying_at(len(SHAPES) // 2, state_dict.view_of)
        self.shared.publish(state, rank=self.rank, num_ranks=self.num_ranks).get(timeout=60)

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Reader(Actor):
    """On a host of its own, if ``far`` names one."""

    def __init__(self, name: str, far: str = "") -> None:
        self.shared = SharedStateDict(name)
        act_as_host(far)
        self.copies = counted_copies()

    @endpoint
    def fetch(self, keys: tuple[str, ...], dtype: str = "float32", version: int = 0) -> Any:
        import torch

        into = {key: torch.full(SHAPES[key], -1.0, dtype=getattr(torch, dtype)) for key in keys}
        number = self.shared.fetch(into, version=version, timeout=60).get()
        return number, {key: value.tolist() for key, value in into.items()}

    @endpoint
    def fetch_on_gpu(self, keys: tuple[str, ...], dtype: str = "float32") -> Any:
        """The version, its values, and the copies that it took; into parts of larger tensors."""
        import torch

        world = gpu_of_tests()
        made = {}
        for key in keys:
            shape = SHAPES[key]
            wider = (*shape[:-1], 2 * shape[-1]) if shape else ()
            whole = world.tensor(torch.full(wider, -1.0, dtype=getattr(torch, dtype)))
            made[key] = whole[..., : shape[-1]] if shape else whole
        world.copies.clear()
        number = self.shared.fetch(made, timeout=60).get()
        return number, {key: value.tolist() for key, value in made.items()}, dict(world.copies)

    @endpoint
    def num_pinned(self) -> int:
        return gpu_of_tests().num_pinned

    @endpoint
    def fetch_filled_on_gpu(self, num_elements: int, times: int) -> list[int]:
        import torch

        into = gpu_of_tests().tensor(torch.zeros(num_elements))
        seen = []
        for _ in range(times):
            seen.append(self.shared.fetch({"w": into}, timeout=60).get())
            assert into.min() == into.max() == seen[-1], (into.min(), into.max(), seen[-1])
        return seen

    @endpoint
    def fetch_sharded(self, version: int, sizes: tuple[int, ...], dims: tuple[int, ...]) -> bool:
        """Whether each shard has what a full gather would have given it."""
        import torch

        into, expected = {}, {}
        for key, shape in SHAPES.items():
            into[key] = sharded(torch.full(shape, -1.0), sizes, dims)
            expected[key] = sharded(numbered(shape, version), sizes, dims)
        assert self.shared.fetch(into, version=version, timeout=60).get() == version
        return all(torch.equal(into[key].to_local(), expected[key].to_local()) for key in into)

    @endpoint
    def fetch_filled(self, num_elements: int, times: int) -> list[int]:
        """The versions that were seen: each time, all elements are of one."""
        import torch

        into = torch.zeros(num_elements)
        seen = []
        for _ in range(times):
            seen.append(self.shared.fetch({"w": into}, timeout=60).get())
            assert into.min() == into.max() == seen[-1], (into.min(), into.max(), seen[-1])
        return seen

    @endpoint
    def num_copies(self) -> int:
        """How many times this process has copied a rank's part of a version from elsewhere."""
        return len(self.copies)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fetch_and_stand_still(self, keys: tuple[str, ...]) -> Any:
        """Stop when half of the tensors have been copied, until somebody lets it go on."""
        import torch

        from monarch.rdma.weights import state_dict

        copy = state_dict.view_of
        state_dict.view_of = acting_at(len(keys) // 2, copy, signal.SIGSTOP)
        into = {key: torch.zeros(SHAPES[key]) for key in keys}
        number = self.shared.fetch(into, timeout=60).get()
        return number, {key: value.tolist() for key, value in into.items()}

    @endpoint
    def follow(self, num: int) -> list[int]:
        seen = []
        for version in self.shared.subscribe():
            seen.append(version)
            if version >= num:
                break
        return seen

    @endpoint
    def fetch_and_die(self, keys: tuple[str, ...]) -> None:
        """Die when half of the tensors have been copied."""
        from monarch.rdma.weights import state_dict

        state_dict.view_of = dying_at(len(keys) // 2, state_dict.view_of)
        import torch

        into = {key: torch.zeros(SHAPES[key]) for key in keys}
        self.shared.fetch(into, timeout=60).get()

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def dying_at(num: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which ends the process when it is called once more than ``num`` times."""
    return acting_at(num, function, signal.SIGKILL)


def acting_at(num: int, function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function; before call ``num`` the process sends itself the signal ``number``, which its
    thread acts on before it goes on."""
    calls = itertools.count()

    def call(*arguments: Any) -> Any:
        if next(calls) == num:
            signal.pthread_kill(threading.get_ident(), number)
        return function(*arguments)

    return call


def counted_copies() -> list[int]:
    """Grows by one with each copy that this process makes for its host."""
    from monarch.rdma.weights import state_dict

    made: list[int] = []
    copy = state_dict._Fetcher._copy

    def counted(*arguments: Any) -> Any:
        made.append(arguments[3])
        return copy(*arguments)

    state_dict._Fetcher._copy = counted  # type: ignore[method-assign]
    return made


def act_as_host(name: str) -> None:
    """Take this process for one of another host, to which only TCP leads."""
    if name:
        from monarch.config import configure
        from monarch.rdma.ways import tcp
        from monarch.rdma.weights import state_dict

        configure(rdma_same_host=False)
        state_dict.machine_id = lambda: name
        # However late the news of a death comes after the end of connections, it is told.
        tcp.Tcp.news_seconds = 60.0


def sharded(tensor: Any, sizes: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """A DTensor over a mesh of ``sizes``; tensors of too few dimensions are whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", sizes)
    placements = [Shard(dim) if dim < tensor.ndim else Replicate() for dim in dims[: len(sizes)]]
    return distribute_tensor(tensor, mesh, placements)
