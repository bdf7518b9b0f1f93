"""What the titan recipe trains, by TorchTitan's own `main`:

torchrun --nproc-per-node 2 titan.py --job.config_file titan.toml
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

import monarch_recipes

sys.path.insert(0, str(Path.cwd()))  # the model's own file
# On a CPU, TorchTitan cannot be imported as it is. This one file helps; its package would bring
# imports along that a plain program does not pay for.
file = Path(monarch_recipes.__file__).with_name("titan") / "versions" / "cpu.py"
spec = importlib.util.spec_from_file_location("titan_on_cpus", file)
spec.loader.exec_module(cpu := importlib.util.module_from_spec(spec))
cpu.import_torchtitan()

from torchtitan.train import Trainer, main  # noqa: E402


class Timed(Trainer):  # type: ignore[misc]
    """TorchTitan's trainer, which prints the time at the end of each step."""

    def train_step(self, batches: Any) -> None:
        super().train_step(batches)
        if dist.get_rank() == 0:
            print(f"{time.time()} step {self.step}", flush=True)

    def close(self) -> None:
        # gloo aborts a process whose peers are gone while it still says goodbye to them.
        dist.barrier()
        super().close()


if __name__ == "__main__":
    main(Timed)
