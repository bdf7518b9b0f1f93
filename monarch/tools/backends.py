"""Chooses the backend of a process group of torch.distributed.

NCCL needs a GPU for each rank, and refuses two ranks on one GPU ("Duplicate GPU detected"), or on
parts of it (MIG), since it tells GPUs apart by their place on the bus. So ranks exchange which GPU
they have, and all use the same backend. With NCCL for tensors on GPUs, gloo is for those on CPUs.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any

import torch

ON_GPUS = "cpu:gloo,cuda:nccl"
ON_CPUS = "gloo"
_NO_GPU = "cpu"


def gpu_of(device: torch.device | str | int | None) -> str:
    """Return a name of a device's GPU that no GPU of any machine shares; "cpu" for a CPU.

    Parts of one GPU have the same name. It does not depend on CUDA_VISIBLE_DEVICES.
    """
    if device is None:
        return _NO_GPU
    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if gpu.type != "cuda":
        return _NO_GPU
    properties = torch.cuda.get_device_properties(gpu)
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None not in numbers:
        return f"{_kernel()} {':'.join(f'{number:x}' for number in numbers)}"
    # Older versions of torch do not give its place on the bus.
    name = getattr(properties, "uuid", None) or gpu.index or torch.cuda.current_device()
    return f"{_kernel()} {name}"


@functools.cache
def _kernel() -> str:
    """Return an id of the machine, which all containers on it share."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def backend_for(gpus: Sequence[str]) -> str:
    """Return the backend of a group whose ranks have these GPUs, as ``gpu_of`` names them."""
    are_distinct = _NO_GPU not in gpus and len(set(gpus)) == len(gpus)
    return ON_GPUS if are_distinct and gpus else ON_CPUS


def why_not_nccl(gpus: Sequence[str]) -> str:
    """Return, for people, why ranks that have GPUs do not use NCCL; "" if they use it, or have
    none."""
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
    store: Any, rank: int, num_ranks: int, device: torch.device | str | int | None
) -> tuple[str, str]:
    """Return the backend that all ranks use, and the text of ``why_not_nccl`` ("" if there is
    none).

    All ranks call it before they make their group, with a store of torch that nobody else uses, and
    the device on which they compute.
    """
    store.set(f"gpu of {rank}", gpu_of(device))
    if rank == 0:
        gpus = [store.get(f"gpu of {other}").decode() for other in range(num_ranks)]
        store.set("backend", f"{backend_for(gpus)}\n{why_not_nccl(gpus)}")
    backend, _, reason = store.get("backend").decode().partition("\n")
    return backend, reason
