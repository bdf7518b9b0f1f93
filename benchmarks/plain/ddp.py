"""What the ddp recipe trains, for `torchrun --nproc-per-node 2 ddp.py 264`."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from monarch_recipes.ddp import DDPConfig, build_model
from monarch_recipes.digits import load_digit_samples
from monarch_recipes.schedule import learning_rate_factor


def main(num_steps: int) -> None:
    config = DDPConfig()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    data = load_digit_samples(config.data_seed).train
    torch.manual_seed(config.seed)
    model = DistributedDataParallel(build_model(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    per_rank = config.global_batch_size // world_size
    num_micro_batches = per_rank // config.max_micro_batch_size
    sampler: DistributedSampler[int] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, config.max_micro_batch_size, sampler=sampler, drop_last=True)
    step, epoch, micro_batches = 0, -1, iter(())
    while step < num_steps:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(step, 10, num_steps)
        optimizer.zero_grad()
        total = torch.zeros(2)
        for number in range(num_micro_batches):
            batch = next(micro_batches, None)
            if batch is None:
                epoch += 1
                sampler.set_epoch(epoch)
                micro_batches = iter(loader)
                batch = next(micro_batches)
            inputs, labels = batch
            model.require_backward_grad_sync = number == num_micro_batches - 1
            logits = model(inputs)
            loss = functional.cross_entropy(logits, labels)
            (loss / num_micro_batches).backward()
            total += torch.stack([loss.detach(), (logits.argmax(1) == labels).float().mean()])
        dist.all_reduce(total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            loss, accuracy = (total / world_size / num_micro_batches).tolist()
            print(f"{time.time()} step {step} loss {loss:.4f} acc {accuracy:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
