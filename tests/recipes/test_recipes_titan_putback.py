"""A step of new code that fails in TorchTitan's trainer is put back in place, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.recipes.titan_support  # noqa: F401
from tests.recipes.test_recipes_titan_hold import rename_model, root
from tests.recipes.titan_edits import EDITS, edited_run

__all__ = ["root"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

LAYOUTS = {
    "fsdp": ([], 2),
    "tp": (["parallelism.tensor_parallel_degree=2"], 2),
    "pp": (["parallelism.pipeline_parallel_degree=2"], 2),
    "ddp": (["parallelism.data_parallel_replicate_degree=2"], 2),
    "hsdp": (["parallelism.data_parallel_replicate_degree=2"], 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_held_and_fixed_run_is_that_of_the_fixes_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    file = rename_model(root, f"llama_putback_{layout}")
    overrides, num_ranks = LAYOUTS[layout]
    right, _ = edited_run(
        root, "right", file, monkeypatch, overrides, fails=False, num_ranks=num_ranks
    )
    held, run = edited_run(
        root, "held", file, monkeypatch, overrides, fails=True, num_ranks=num_ranks
    )
    assert not run.events("begun_again", "respawned")
    assert len(run.events("mended")) == len(EDITS)
    for step, losses in right.losses.items():
        assert held.losses[step] == losses, step
        assert held.digests[step] == right.digests[step], step
