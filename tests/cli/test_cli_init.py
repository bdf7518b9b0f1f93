"""``monarch init``, and the configs that say what their keys mean."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from monarch.cli.project import load_project
from monarch.config_file import load_config
from monarch.errors import JobError
from monarch.runs.recipe import find_recipe
from tests.cli.command_folder import CommandFolder
from tests.cli.on_terminal import on_terminal

torch = pytest.importorskip("torch")


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


def test_what_is_there_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CommandFolder(tmp_path)
    (tmp_path / "task.py").write_text("mine")
    with pytest.raises(JobError, match=r"task\.py is there already"):
        folder.here(monkeypatch, "init")
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]
    assert (tmp_path / "task.py").read_text() == "mine"


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
