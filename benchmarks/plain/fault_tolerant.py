"""What the fault_tolerant recipe trains, as plain TorchFT: one process is one group.

TORCHFT_LIGHTHOUSE=http://... REPLICA=0 python fault_tolerant.py 300
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from monarch_recipes.digits import load_digit_samples
from monarch_recipes.fault_tolerant import FaultTolerantConfig, build_model
from monarch_recipes.schedule import learning_rate_factor


def main(num_steps: int) -> None:
    config, replica = FaultTolerantConfig(), int(os.environ["REPLICA"])
    torch.set_num_threads(1)
    data = load_digit_samples(config.data_seed).train
    torch.manual_seed(config.seed)
    model: nn.Module = build_model(config)
    inner = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load_state(found: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(found["model"])
        inner.load_state_dict(found["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)), min_replica_size=1,
        state_dict=state, load_state_dict=load_state, use_async_quorum=False,
        replica_id=f"plain{replica}", store_addr="localhost", store_port=store.port,
        rank=0, world_size=1, timeout=timedelta(seconds=10), hostname="localhost",
    )  # fmt: skip
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    sampler: DistributedSampler[int] = DistributedSampler(data, 2, replica, drop_last=True)
    loader = DataLoader(data, config.batch_size, sampler=sampler, drop_last=True)
    batches, epoch = iter(()), -1
    while manager.current_step() < num_steps:
        batch = next(batches, None)
        if batch is None:
            epoch += 1
            sampler.set_epoch(epoch)
            batches = iter(loader)
            batch = next(batches)
        step = manager.current_step()
        for group in inner.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(step, 10, num_steps)
        optimizer.zero_grad()
        loss = functional.cross_entropy(parallel(batch[0]), batch[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if replica == 0:
            print(f"{time.time()} step {manager.current_step()} loss {loss.item():.4f}", flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
