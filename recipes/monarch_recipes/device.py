"""Chooses the device on which a rank computes."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from monarch.config_file import ConfigError


def use_device(wanted: str, slot: int, num_threads: int) -> torch.device:
    """Make a GPU or the CPU the device of this process, and return it.

    `wanted` is "cpu", "cuda", or "auto": a GPU if there is one. The process that is the `slot`-th
    on its host takes GPU `slot`, modulo the number of GPUs. On the CPU it computes with
    `num_threads` threads. Raises ConfigError if `wanted` is "cuda" and there is no GPU.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        torch.set_num_threads(num_threads)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"asks for a GPU, and {socket.gethostname()} has none", key="device")
    device = torch.device("cuda", slot % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True)
class SystemInfo:
    """The machine, process and device of a rank."""

    rank: int
    world_size: int
    hostname: str
    pid: int
    device: str
    backend: str
    torch_version: str


def system_info(device: torch.device) -> SystemInfo:
    """Return the description of this process, which must be in a process group."""
    return SystemInfo(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        backend=dist.get_backend(),
        torch_version=torch.__version__,
    )
