"""``monarch init``, and the configs that say what their keys mean."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from monarch.cli.allocation.found_code import LOGS, WEIGHTS, kind_of, look_at
from monarch.cli.project import load_project
from monarch.cli.trust import trusted_files
from monarch.config_file import load_config
from monarch.runs.recipe.recipe import find_recipe
from tests.cli.command_folder import CommandFolder
from tests.cli.on_terminal import on_terminal

torch = pytest.importorskip("torch")


@pytest.mark.long
def test_what_it_writes_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CommandFolder(tmp_path)
    said = folder.here(monkeypatch, "init")
    for name in ("monarch.toml", "task.py", "ddp.toml"):
        assert f"wrote {name}" in said
    project = tmp_path / "monarch.toml"
    assert load_project(str(project)).file.job.hosts == {"hosts": 2}
    assert re.findall(r"^\[.*\]", project.read_text(), re.MULTILINE) == ["[job]", "[workspace]"]
    assert "Hosts of other kinds" in project.read_text()
    assert max(map(len, project.read_text().splitlines())) <= 80
    said = folder.here(monkeypatch, "recipe", "validate", "ddp", "--config", "ddp.toml")
    assert "ddp can run on" in said
    plan = folder.here(monkeypatch, "run", "ddp", "--config", "ddp.toml", "--plan")
    assert re.search(r"parameters +9,610\n", plan)  # of its own model


def test_what_is_missing_is_written_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CommandFolder(tmp_path)
    (tmp_path / "task.py").write_text("mine = 1\n")
    said = folder.here(monkeypatch, "init")
    assert (tmp_path / "task.py").read_text() == "mine = 1\n"
    assert [line.split(":")[0] for line in said.splitlines()[:3]] == [
        "wrote monarch.toml", "kept task.py", "wrote ddp.toml"
    ]  # fmt: skip
    assert "task.py has no `build_model` and `compute_loss`" in said
    before = (tmp_path / "monarch.toml").read_text()
    said = folder.here(monkeypatch, "init", "--hosts", "3")
    assert (tmp_path / "monarch.toml").read_text() == before
    assert "kept monarch.toml" in said
    assert "edit `hosts` there" in said


def test_a_project_file_that_was_there_is_not_trusted_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "monarch.toml").write_text('[job]\nhosts = { a = 1 }\npreload = ["evil"]\n')
    CommandFolder(tmp_path).here(monkeypatch, "init")
    assert str(tmp_path / "monarch.toml") not in trusted_files()


_LIGHTNING = """
import lightning as L
def main():
    L.Trainer(devices=2).fit(Model())
if __name__ == "__main__":
    main()
"""
_HF = """
from transformers import Trainer, TrainingArguments
trainer = Trainer(model=None, args=TrainingArguments("out"))
trainer.train()
"""
_RAY = """
from ray.train.torch import TorchTrainer
TorchTrainer(lambda: None).fit()
"""
_TORCHRUN = """
import argparse
import torch.distributed as dist
if __name__ == "__main__":
    argparse.ArgumentParser().parse_args()
    dist.init_process_group()
"""
_SCRIPT = """
import torch
for step in range(3):
    loss.backward()
"""


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (_LIGHTNING, "lightning"), (_HF, "hf"), (_RAY, "ray"), (_TORCHRUN, "torchrun"),
        (_SCRIPT, "script"), ("def run(config, procs, record): ...", "recipe"),
        ("import torch\nclass Model(torch.nn.Module): ...", None),
        ("import argparse\nif __name__ == '__main__': print()", None),
    ],
)  # fmt: skip
def test_what_kind_of_training_a_file_starts(source: str, kind: str | None) -> None:
    assert kind_of(ast.parse(source)) == kind


def test_a_project_that_exists_is_looked_at_and_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(_TORCHRUN)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/fit.py").write_text(_LIGHTNING)
    (tmp_path / "configs").mkdir()
    (tmp_path / "wandb").mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "broken.py").write_text("def f(")
    said = CommandFolder(tmp_path).here(monkeypatch, "init")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken.py", "configs", "monarch.toml", "outputs", "scripts", "train.py", "wandb"
    ]  # fmt: skip
    assert load_project(str(tmp_path / "monarch.toml")).file.workspace.ignore == [
        "runs/", *(f"{name}/" for name in LOGS), "outputs/", *(f"*{kind}" for kind in WEIGHTS)
    ]  # fmt: skip
    assert "train.py: a script for torchrun. `monarch run train.py --procs 2`" in said
    assert "scripts/fit.py: a Lightning Trainer" in said
    assert "`monarch run train.py -- --config configs/...`" in said
    assert "    monarch dev train.py " in said


def test_the_script_that_trains_comes_first(tmp_path: Path) -> None:
    trains = "import torch\nloss.backward()\n"
    for name in ("bench.py", "sample.py", "train.py"):
        (tmp_path / name).write_text(trains)
    assert [script.name for script in look_at(tmp_path).scripts] == [
        "train.py", "bench.py", "sample.py",
    ]  # fmt: skip
    (tmp_path / "zero.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group()\n"
    )
    assert look_at(tmp_path).scripts[0].name == "zero.py", "surely one for several processes"


def test_who_sits_there_is_asked_for_the_hosts(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "init", "demo") as shown:
        shown.until("How many hosts?")
        shown.press("0\n")
        shown.until("0 is not in the range")
        shown.press("3\n")
        assert shown.end() == 0
        shown.until("cd demo")
    assert load_project(str(tmp_path / "demo/monarch.toml")).file.job.hosts == {"hosts": 3}


@pytest.mark.parametrize("recipe", ["ddp", "fault_tolerant"])
def test_a_config_says_what_its_keys_mean_and_loads_to_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    if recipe == "fault_tolerant":
        pytest.importorskip("torchft")
    folder = CommandFolder(tmp_path)
    (tmp_path / "shown.toml").write_text(
        folder.here(monkeypatch, "recipe", "show", recipe, "--toml")
    )
    said = folder.here(monkeypatch, "recipe", "cp", recipe, "copied.toml")
    assert f"monarch run {recipe} --config copied.toml" in said
    config_class = find_recipe(recipe).config_class
    for name in ("shown.toml", "copied.toml"):
        assert load_config(config_class, tmp_path / name).config == config_class()
        text = (tmp_path / name).read_text()
        assert re.search(r"^learning_rate = .*the highest \(live\)$", text, re.MULTILINE)


def test_its_task_fits_each_recipe_that_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CommandFolder(tmp_path).here(monkeypatch, "init", "--hosts", "1")
    task = runpy.run_path(str(tmp_path / "task.py"))
    for config in (find_recipe(name).config_class() for name in ("ddp", "fault_tolerant")):
        images, labels = torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.long)
        assert task["compute_loss"](task["build_model"](config)(images), labels).ndim == 0
