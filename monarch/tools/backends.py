"""Which backend a process group of torch.distributed takes: all that make one ask here.

NCCL needs a GPU for each rank, and refuses two ranks on one ("Duplicate GPU detected"), parts of a
GPU (MIG) included: it tells GPUs apart by their place on the bus. So ranks say which GPU they have
when they meet, and all take the same backend. Where NCCL carries what is on GPUs, gloo carries what
is on CPUs.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Protocol

import torch

ON_GPUS = "cpu:gloo,cuda:nccl"
ON_CPUS = "gloo"
_NO_GPU = "cpu"


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


def gpu_of(device: torch.device | str | int | None) -> str:
    """The name of a device's GPU, which no other GPU has, on whatever machine; "cpu" for a CPU.

    Parts of one GPU have one name. The numbers that CUDA_VISIBLE_DEVICES gives do not matter.
    """
    if device is None:
        return _NO_GPU
    place_here = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place_here.type != "cuda":
        return _NO_GPU
    about = torch.cuda.get_device_properties(place_here)
    place = [getattr(about, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None not in place:
        return f"{_kernel()} {':'.join(f'{number:x}' for number in place)}"
    # Older versions of torch do not say where on the bus it is.
    name = getattr(about, "uuid", None) or place_here.index or torch.cuda.current_device()
    return f"{_kernel()} {name}"


@functools.cache
def _kernel() -> str:
    """The machine, which containers on it have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def backend_for(gpus: Sequence[str]) -> str:
    """The backend of a group whose ranks have these GPUs, as ``gpu_of`` names them."""
    has_own = _NO_GPU not in gpus and len(set(gpus)) == len(gpus)
    return ON_GPUS if has_own and gpus else ON_CPUS


def why_not_nccl(gpus: Sequence[str]) -> str:
    """For people, where ranks that have GPUs do without NCCL; "" where they do not."""
    on_gpus = [gpu for gpu in gpus if gpu != _NO_GPU]
    if not on_gpus or backend_for(gpus) == ON_GPUS:
        return ""
    if len(on_gpus) < len(gpus):
        return (
            f"{len(gpus) - len(on_gpus)} of {len(gpus)} ranks have no GPU: all meet over gloo, "
            "which is slower than NCCL"
        )
    num_gpus = len(set(gpus))
    return (
        f"{len(gpus)} ranks share {num_gpus} GPU{'s' * (num_gpus > 1)}, which NCCL refuses: they "
        "meet over gloo, which is slower"
    )


def agree_on_backend(
    store: Store, rank: int, num_ranks: int, device: torch.device | str | int | None
) -> tuple[str, str]:
    """The backend that all ranks take, and ``why_not_nccl``. All of them call it, at a store that
    is theirs alone, before they make their group; ``device`` is what this rank computes on."""
    store.set(f"gpu of {rank}", gpu_of(device))
    if rank == 0:
        gpus = [store.get(f"gpu of {other}").decode() for other in range(num_ranks)]
        store.set("backend", f"{backend_for(gpus)}\n{why_not_nccl(gpus)}")
    backend, _, why = store.get("backend").decode().partition("\n")
    return backend, why
