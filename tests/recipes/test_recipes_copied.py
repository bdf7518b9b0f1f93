"""What `monarch recipe cp` writes trains as it is: it names nothing that only the original has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runs_folder import RunsFolder

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("recipe", "settings", "num_steps"),
    [
        ("ddp", ["num_epochs=1", "num_channels=4"], 11),
        ("fault_tolerant", ["num_steps=4", "hidden_size=16"], 4),
        (
            "fault_tolerant",
            ["num_steps=2", "hidden_size=16", "algorithm=diloco", "sync_every=2"],
            2,
        ),
    ],
    ids=["ddp", "fault_tolerant", "fault_tolerant_diloco"],
)
def test_a_copy_trains(tmp_path: Path, recipe: str, settings: list[str], num_steps: int) -> None:
    if recipe == "fault_tolerant":
        pytest.importorskip("torchft")
    folder = RunsFolder(tmp_path)
    folder.monarch("recipe", "cp", recipe, "my_recipe.py")
    folder.monarch("run", "my_recipe.py", *settings)
    rows = folder.rows("metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [*range(1, num_steps + 1)]
    assert 0 < rows[-1]["held_out_accuracy"] <= 1
