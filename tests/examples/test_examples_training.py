"""The training examples, and the recipe that the documentation makes of a plain script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs_folder import RunsFolder

ROOT = Path(__file__).parents[2]


def run_example(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_ddp_from_the_cells_of_a_notebook() -> None:
    lines = run_example("ddp_notebook.py")
    for rank in range(2):
        assert any(f"self.rank={rank} Running basic DDP example" in line for line in lines)
        assert any(re.search(rf"Rank {rank}: PID=\d+, Device=", line) for line in lines)
    assert "Found 2 ranks in the mesh" in lines
    assert [line for line in lines if line.startswith("---")] == [
        f"--- Step {step} ---" for step in (1, 2, 3)
    ]
    norms = [line for line in lines if line.startswith("Gradient norms: ")]
    assert len(norms) == 3
    for line in norms:
        first, second = re.findall(r"\d+\.\d+", line)
        assert first == second, "the gradient is that of both"


@pytest.mark.slow
def test_a_torchrun_script_runs_unchanged_on_a_mesh() -> None:
    lines = [line for line in run_example("spmd.py") if "loss" in line]
    assert len(lines) == 2
    for rank, line in enumerate(sorted(lines, key=lambda line: line.partition("rank ")[2])):
        assert f"rank {rank} of 2: loss 0." in line


@pytest.mark.slow
def test_some_procs_train_while_another_evaluates(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    example = str(ROOT / "examples/roles/train_eval.py")
    said = folder.monarch("run", example, "num_steps=40", "--roles", "train=2,eval=1")
    assert "1 host x 3 procs" in said
    losses = [r["held_out_loss"] for r in folder.rows("metrics.jsonl") if "held_out_loss" in r]
    assert losses[-1] < losses[0]
    best = [event["step"] for event in folder.rows("events.jsonl") if event["kind"] == "best"]
    assert best[-1] == 40, "the last weights were looked at, too"
    assert (folder.runs[0] / "checkpoints/best.pt").exists()


def code_blocks(language: str) -> list[str]:
    text = (ROOT / "docs/own_recipe.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_recipe_of_the_documentation_trains_and_resumes(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    (block,) = [block for block in code_blocks("python") if "def run(" in block]
    (tmp_path / "linear.py").write_text(block)
    said = folder.monarch("run", "linear.py", "num_steps=30")
    rows = folder.rows("metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert rows[-1]["loss"] < rows[0]["loss"] / 10, said
    assert folder.rows("events.jsonl")[-1]["status"] == "finished"


def test_what_the_documentation_names_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunsFolder(tmp_path)
    pages = ("recipes", "data", "checkpoints", "own_recipe", "roles")
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in pages)
    for command in ("run", "sweep", "recipe cp", "recipe validate", "runs plot"):
        known = set(re.findall(r"--[a-z-]+", folder.here(monkeypatch, *command.split(), "--help")))
        for line in re.findall(rf"^    monarch {command} .*$", text, re.MULTILINE):
            assert set(re.findall(r"--[a-z-]+", line)) <= known, line
    for path in re.findall(r"`((?:examples|recipes|monarch)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
