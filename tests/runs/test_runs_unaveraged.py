"""An optimizer does not step with gradients that DDP has not averaged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

# In a process of its own: gloo's threads outlive a process group.
SCRIPT = """
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from monarch.runs.hold.unaveraged import GradientsNotAveraged, guard_optimizers


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.num_used = 3

    def forward(self, value):
        for block in self.blocks[: self.num_used]:
            value = block(value)
        return value


class Plain(torch.optim.Optimizer):
    def __init__(self, model):
        super().__init__(model.parameters(), {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= parameter.grad


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = Blocks()
parallel, optimizer, other = DistributedDataParallel(model), Plain(model), Plain(Blocks())
guard_optimizers()
guard_optimizers()


def learn():
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    parallel(torch.ones(2, 4)).sum().backward()
    try:
        optimizer.step()
    except GradientsNotAveraged as error:
        told = str(error)
    else:
        told = ""
    pairs = zip(model.parameters(), before, strict=True)
    return [told, not all(torch.equal(one, was) for one, was in pairs)]


found = [learn()]
model.num_used = 2
found.append(learn())
other.step()  # Another model's.
del parallel
parallel = DistributedDataParallel(model, find_unused_parameters=True)
guard_optimizers()
found.append(learn())
del parallel
parallel = DistributedDataParallel(model)  # A hook notes it: nobody looks for wrappers again.
found.append(learn())
print(json.dumps(found))
"""


@pytest.mark.long
def test_a_step_that_leaves_parameters_out_fails_before_it_changes_any() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    usual, left_out, looked_for, later = json.loads(done.stdout.splitlines()[-1])
    assert usual == ["", True]
    assert "does not depend on blocks.2.weight, blocks.2.bias" in left_out[0]
    assert "find_unused_parameters=True" in left_out[0]
    assert not left_out[1]
    assert looked_for == ["", True]
    assert later == left_out
