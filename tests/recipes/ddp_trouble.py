"""A task for the DDP recipe that gets into trouble on rank 1, as DDP_TROUBLE says."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from monarch_recipes import ddp

SPOILED = 700


class Spoiled:
    """A data set of which one sample cannot be read."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index == SPOILED:
            raise OSError("the shard is gone")
        return self.data[index]


def trouble() -> str:
    return os.environ.get("DDP_TROUBLE", "") if dist.get_rank() == 1 else ""


def load_data(config: ddp.DDPConfig) -> ddp.Data:
    data = ddp.load_data(config)
    return ddp.Data(Spoiled(data.train), data.held_out) if trouble() == "sample" else data


def build_model(config: ddp.DDPConfig) -> nn.Module:
    if trouble() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return ddp.build_model(config)


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    kind, _, place = trouble().partition(" ")
    if kind == "hang" and Path(place).exists():
        Path(place).unlink()
        hang_here()
    loss = functional.cross_entropy(logits, labels)
    return loss * float("nan") if kind == "nan" and Path(place).exists() else loss


def hang_here() -> None:
    while True:
        time.sleep(1)
