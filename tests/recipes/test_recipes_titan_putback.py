"""A step of new code that fails in TorchTitan's trainer is put back in place, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.recipes.titan_support  # noqa: F401
from tests.recipes.test_recipes_titan_hold import rename_model, root
from tests.recipes.titan_edits import EDITS, Edit, edited_run

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
    # Of what all ranks have, and of each rank's shards.
    num_groups = {len(rank) for ranks in right.digests.values() for rank in ranks}
    assert num_groups == ({2} if layout == "fsdp" else {len(right.digests[1][0])})
    for step, losses in right.losses.items():
        assert held.losses[step] == losses, step
        assert held.digests[step] == right.digests[step], step


def test_blocks_that_are_compiled_are_put_back_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = rename_model(root, "llama_putback_compiled")
    overrides = ["compile.enable=true", "compile.backend=aot_eager", 'compile.components=["model"]']
    some = tuple(edit for edit in EDITS if edit.name in COMPILED)
    right, _ = edited_run(root, "right", file, monkeypatch, overrides, some, fails=False)
    held, run = edited_run(root, "held", file, monkeypatch, overrides, some, fails=True)
    assert not run.events("begun_again", "respawned")
    assert held.losses == right.losses
    assert held.digests == right.digests


COMPILED = "name", "name on one rank", "backward", "after the optimizer", "state"
DIES = Edit("dies", loss='if os.environ["RANK"] == "1": os._exit(3)')


@pytest.mark.parametrize("layout", ["fsdp", "pp"])
def test_new_processes_go_on_from_the_copies_in_their_hosts_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A rank that dies in the first step on new code costs no step, and no checkpoint."""
    file = rename_model(root, f"llama_copies_{layout}")
    overrides = [*LAYOUTS[layout][0], "validation.enable=false"]
    only = (DIES,)
    right, _ = edited_run(
        root, "right", file, monkeypatch, overrides, only, fails=False, keeps_own_state=False
    )
    held, run = edited_run(
        root, "held", file, monkeypatch, overrides, only, fails=True, keeps_own_state=False
    )
    # Once for the first death, and once after the fix.
    resumed = [(event["step"], event["text"]) for event in run.events("resumed")]
    assert resumed == [(2, "goes on from step 2, from the host's memory")] * 2
    assert run.steps == list(range(1, 6))
    assert held.losses == right.losses
    assert held.digests == right.digests
