"""The whole recipe on the actor runtime, from a copy of its file, interrupted and run again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import monarch_recipes

SCRIPT = """\
import sys
from pathlib import Path

from monarch.actor import this_host
from monarch_recipes.display import LineDisplay
from my_ddp import DDPConfig, run


class Impatient(LineDisplay):
    def metrics(self, step, num_steps, values):
        super().metrics(step, num_steps, values)
        if step == 30:
            raise KeyboardInterrupt


def main():
    config = DDPConfig(checkpoint_dir=Path("checkpoints"))
    procs = this_host().spawn_procs({"gpus": 2})
    try:
        run(config, procs, Impatient(sys.stdout))
    except KeyboardInterrupt:
        print("INTERRUPTED")
    outcome = run(config, procs, LineDisplay(sys.stdout))
    print("ACCURACY", outcome.held_out_accuracy, outcome.step)
    procs.stop().get()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_copied_recipe_is_interrupted_resumed_and_reaches_97_percent(tmp_path: Path) -> None:
    shutil.copy(Path(monarch_recipes.__file__).with_name("ddp.py"), tmp_path / "my_ddp.py")
    (tmp_path / "go.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "go.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "interrupted: saved checkpoints/step-00000030.pt" in lines
    assert "INTERRUPTED" in lines
    assert "resumed from checkpoints/step-00000030.pt, after step 30" in lines
    accuracy, step = next(line for line in lines if line.startswith("ACCURACY")).split()[1:]
    assert float(accuracy) > 0.97
    assert step == "264"
