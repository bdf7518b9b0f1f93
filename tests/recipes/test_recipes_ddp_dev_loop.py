"""The dev loop in training: loss and schedule of a running DDP job change between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from tests.cli.runs_folder import RunsFolder
from tests.support import Program, wait_for


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_loss_and_schedule_change_and_weights_stay(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunsFolder(tmp_path)
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 2 }\n")
    folder.monarch("recipe", "cp", "ddp", "my_recipe.py")
    folder.monarch("apply")
    try:
        monkeypatch.chdir(tmp_path)
        script = "import sys; sys.argv = {!r}\nfrom monarch.cli.main import main; main()"
        watcher = program(script.format(["monarch", "sync", "--watch"]))
        watcher.line("watching ", timeout=60)
        command = ["monarch", "run", "my_recipe.py", "num_epochs=100", "checkpoint_every=5"]
        running = program(script.format(command))
        wait_for(lambda: steps(folder) > 20, 120.0, "the first steps")
        recipe = tmp_path / "my_recipe.py"
        for old, new in (
            ("cross_entropy(logits, labels)", "cross_entropy(logits, labels) + 100"),
            ("return config.learning_rate *", "return 0 * config.learning_rate *"),
        ):
            text = recipe.read_text()
            assert text.count(old) == 1
            num_before = len(generations(folder))
            recipe.write_text(text.replace(old, new))
            wait_for(lambda n=num_before: len(generations(folder)) > n, 60.0, new)
        last = steps(folder)
        wait_for(lambda: steps(folder) > last + 10, 60.0, "more steps")
        running.send_signal(2)
        assert running.wait(60) == 130, running.story()
        watcher.send_signal(2)
        assert watcher.wait(60) == 0, watcher.story()
    finally:
        folder.monarch("kill")

    first, second = generations(folder)
    assert first["files"] == second["files"] == ["my_recipe.py"]
    assert "+    return functional.cross_entropy(logits, labels) + 100" in first["diff"]
    rows = {row["step"]: row for row in folder.rows("metrics.jsonl") if "loss" in row}
    for step, row in rows.items():
        assert (row["loss"] > 99) == (step >= first["step"]), "all ranks in the same step"
        assert (row["learning_rate"] == 0) == (step >= second["step"])
    # The weights stayed: but for what was added, the loss goes on where it was.
    assert rows[first["step"]]["loss"] - 100 < 0.5 * rows[1]["loss"]
    checkpoint = load_checkpoint(checkpoint_paths(folder.runs[0] / "checkpoints")[-1])
    assert checkpoint.state["generation"] == second["generation"]


def steps(folder: RunsFolder) -> int:
    return len(folder.rows("metrics.jsonl")) if folder.runs else 0


def generations(folder: RunsFolder) -> list[dict[str, Any]]:
    return [row for row in folder.rows("events.jsonl") if row["kind"] == "generation"]
