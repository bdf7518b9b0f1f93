"""What it costs that ranks are kept alike: steps with and without it, in turns.

    python benchmarks/alike.py
    python benchmarks/alike.py --blocks 40 --every 50

One process, in a process group of its own. A block is ``--every`` steps: without it, of plain DDP;
with it, each step sees that all gradients were averaged, and the last one computes a fingerprint.
The figure is the median of the ratios of neighbouring blocks, in CPU seconds of this process, as
the machine may be busy.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from monarch_recipes.ddp import DDPConfig, build_model
from monarch_recipes.fingerprint import digest_of, state_of, sums_of
from monarch_recipes.gradients import AveragedGradients


class Blocks(nn.Module):
    """A small transformer, of about two million parameters in 75 tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(inputs).mean(1))
        return result


def measure(name: str, model: nn.Module, inputs: torch.Tensor, num_blocks: int, every: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    parallel = DistributedDataParallel(model)
    gradients = AveragedGradients(parallel, model, optimizer)
    labels = torch.zeros(len(inputs), dtype=torch.int64)

    def block(has_it: bool) -> float:
        started = time.process_time()
        for _ in range(every):
            if has_it:
                gradients.expect()
            functional.cross_entropy(parallel(inputs), labels).backward()
            if has_it:
                gradients.complete()
            optimizer.step()
            optimizer.zero_grad()
        if has_it:
            digest_of(sums_of(state_of(model, [optimizer])))
        return time.process_time() - started

    block(True)
    block(False)
    ratios, seconds = [], []
    for number in range(num_blocks):
        order = (False, True) if number % 2 else (True, False)
        times = {has_it: block(has_it) for has_it in order}
        ratios.append(times[True] / times[False])
        seconds.append(times[False] / every)
    ratios.sort()
    quarter = len(ratios) // 4
    print(
        f"{name}: {(statistics.median(ratios) - 1) * 100:+.2f} % "
        f"(quartiles {(ratios[quarter] - 1) * 100:+.2f}, {(ratios[-1 - quarter] - 1) * 100:+.2f}), "
        f"a step without it {statistics.median(seconds) * 1000:.2f} ms of a CPU"
    )
    started = time.process_time()
    for _ in range(20):
        digest_of(sums_of(state_of(model, [optimizer])))
    print(f"{name}: a fingerprint {(time.process_time() - started) / 20 * 1000:.2f} ms of a CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks (20)")
    parser.add_argument("--every", type=int, default=100, help="steps a block (100)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    digits = torch.randn(32, 1, 8, 8)
    measure("ddp's digits", build_model(DDPConfig()), digits, asked.blocks, asked.every)
    texts = torch.randn(8, 64, 128)
    measure("a transformer", Blocks(), texts, max(4, asked.blocks // 2), asked.every)


if __name__ == "__main__":
    main()
