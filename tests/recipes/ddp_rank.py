"""One rank of the scenarios in test_recipes_ddp.py: `ddp_rank.py FOLDER PORT PORT ...`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from monarch_recipes.ddp import DDPConfig, DDPTrainer, TrainingPlan

ports = iter(sys.argv[2:])
folder = Path(sys.argv[1]) / "checkpoints"
plans: list[TrainingPlan] = []
config = DDPConfig(num_channels=8, device="cpu", num_epochs=2)


def begin(config: DDPConfig) -> DDPTrainer:
    """A training as in a process that has just started: nothing left of the one before."""
    os.environ["MASTER_PORT"] = next(ports)
    torch.manual_seed(999)
    trainer = DDPTrainer(config, folder)
    plans.append(trainer.setup())
    return trainer


def report(trainer: DDPTrainer, num_steps: int) -> dict[str, Any]:
    results = trainer.train(num_steps)
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    moments = trainer.optimizer.state_dict()["state"].values()
    weights += b"".join(moment["exp_avg_sq"].numpy().tobytes() for moment in moments)
    return {
        "losses": [result.loss for result in results],
        "steps": [result.step for result in results],
        "digest": hashlib.sha256(weights).hexdigest(),
        "accuracy": trainer.evaluate(),
    }


found: dict[str, Any] = {}
never = dataclasses.replace(config, resume="never")
without_dropout = dataclasses.replace(never, dropout=0.0)

found["straight"] = report(begin(never), 17)

interrupted = begin(config)
found["before"] = report(interrupted, 14)
interrupted.save()
resumed = begin(config)
found["resumed_from"] = str(plans[-1].resumed_from)
found["after"] = report(resumed, 3)

weights_at_14 = torch.load(folder / "step-00000014.pt", weights_only=True)["model"]
tuned = begin(dataclasses.replace(never, init_from=str(folder / "step-00000014.pt")))
found["tuned"] = {
    "first_step": plans[-1].first_step,
    "is_equal": all(
        torch.equal(one, weights_at_14[n]) for n, one in tuned.model.state_dict().items()
    ),
    "num_states": len(tuned.optimizer.state_dict()["state"]),
}

found["two_ranks"] = report(begin(without_dropout), 4)
found["bfloat16"] = report(begin(dataclasses.replace(never, precision="bfloat16")), 4)
found["float16"] = report(begin(dataclasses.replace(never, precision="float16")), 4)

averaged = dataclasses.replace(config, task="averaged")
own = folder.with_name("averaged")


def averages_of(trainer: DDPTrainer) -> str:
    ema = trainer.extra.objects["ema"].state_dict()
    return hashlib.sha256(b"".join(ema[name].numpy().tobytes() for name in sorted(ema))).hexdigest()


folder, before = own, folder
straight = begin(averaged)
straight.train(4)
found["averaged"] = [averages_of(straight), straight.evaluate()]
plain = begin(averaged)
plain.train(2)
plain.save()
again = begin(averaged)
again.train(2)
found["averaged_again"] = [averages_of(again), again.evaluate(), plans[-1].skipped]
folder = before
without = begin(averaged)
found["averaged_anew"] = [plans[-1].skipped, plans[-1].first_step]
fresh = without.extra.objects["ema"].module.state_dict()
found["averaged_anew"].append(
    all(torch.equal(one, fresh[name]) for name, one in without.model.state_dict().items())
)

missing = dataclasses.replace(config, resume=str(folder / "step-00000099.pt"))
foreign = dataclasses.replace(config, num_channels=16)
for name, bad in ("missing", missing), ("foreign", foreign):
    try:
        begin(bad)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

dist.destroy_process_group()
if os.environ["RANK"] == "0":
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = "1"
    alone = begin(without_dropout)
    found["alone_plan"] = dataclasses.asdict(plans[-1])
    found["one_rank"] = report(alone, 4)
    fewer = begin(config)
    found["fewer_first_step"] = plans[-1].first_step
    found["fewer"] = report(fewer, 1)
    dist.destroy_process_group()
print(json.dumps(found, default=str))
