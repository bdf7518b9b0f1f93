"""The ranks of the scenarios in test_recipes_weights.py: `weights_rank.py FOLDER`.

All are forked from here, so that torch is imported once. Each leaves what it found in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

from monarch.runtime.ends.process_group import die_with_parent
from monarch.tools.network import free_port
from monarch_recipes.buffers import Buffers
from monarch_recipes.collective import average_buffers
from monarch_recipes.ddp import DDPConfig, DDPTrainer

sys.path.insert(0, str(Path(__file__).parent))
FOLDER = Path(sys.argv[1])
SIZES = (1, 2, 8)
PORTS: dict[int, int] = {}
TRAINERS: list[DDPTrainer] = []
"""They are kept until the process ends without further ado: torch may hang in taking them down."""


def find() -> dict[str, Any]:
    """Loss, metrics and gradient of one step, by the size of micro-batches."""
    found: dict[str, Any] = {}
    for size in SIZES:
        config = DDPConfig(
            task="masked_task", device="cpu", resume="never", global_batch_size=16,
            max_micro_batch_size=size, clip_norm=None, learning_rate=0.0,
        )  # fmt: skip
        trainer = DDPTrainer(config)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORTS[size]))
        trainer.setup()
        gradients: list[torch.Tensor] = []
        trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *about, to=gradients: to.extend(
                p.grad.flatten() for group in optimizer.param_groups for p in group["params"]
            )
        )
        result = trainer.step()
        found[str(size)] = {
            "loss": result.loss,
            "letters_right": result.metrics["letters_right"],
            "gradient": torch.cat(gradients).tolist(),
        }
        TRAINERS.append(trainer)
    found["buffers"] = averaged_statistics()
    return found


def averaged_statistics() -> dict[str, list[float]]:
    """BatchNorm's, before and after they are averaged."""
    torch.manual_seed(dist.get_rank())
    model = nn.BatchNorm1d(3)
    model(torch.randn(8, 3))
    before = model.running_mean.tolist()
    average_buffers(Buffers(model))
    return {"before": before, "after": model.running_mean.tolist()}


def be_rank(rank: int) -> None:
    die_with_parent()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    (FOLDER / f"{os.environ['WORLD_SIZE']}-{rank}.json").write_text(json.dumps(find()))


for num_ranks in (1, 2, 4):
    os.environ.update(WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks))
    PORTS.update({size: free_port() for size in SIZES})
    children = []
    for rank in range(num_ranks):
        if (child := os.fork()) == 0:
            try:
                be_rank(rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"with {num_ranks} ranks: {statuses}")
