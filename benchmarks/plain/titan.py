"""What the titan recipe trains, by TorchTitan's own `main`:

torchrun --nproc-per-node 2 titan.py --job.config_file titan.toml
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from monarch_recipes.titan_cpu import import_torchtitan

sys.path.insert(0, str(Path.cwd()))  # the model's own file
import_torchtitan()  # On a CPU it cannot be imported as it is.

from torchtitan.train import Trainer, main  # noqa: E402


class Timed(Trainer):  # type: ignore[misc]
    """Says when each step was done, as the other plain programs do."""

    def train_step(self, batches: Any) -> None:
        super().train_step(batches)
        print(f"{time.time()} step {self.step}", flush=True)


if __name__ == "__main__":
    main(Timed)
