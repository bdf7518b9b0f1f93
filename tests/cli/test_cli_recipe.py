"""``monarch recipe``: what there is, and how to make one your own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch.config_file import ConfigError, load_config
from monarch.errors import JobError
from monarch.runs.recipe.catalog import built_in_recipes, summary_of
from monarch_recipes.ddp import DDPConfig
from tests.cli.runs_folder import COUNTING, RunsFolder
from tests.support import small_files


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def test_ls_names_all_with_their_first_line(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "recipe", "ls").splitlines()
    assert [line.split()[0] for line in said] == list(built_in_recipes())
    assert "ddp" in built_in_recipes()
    assert any("every rank has the whole model" in line for line in said)
    for module in built_in_recipes().values():
        assert summary_of(module)


def test_show_prints_a_config_that_loads(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "recipe", "show", "counting.py")
    assert said == (
        "Counts, and can be stopped and resumed.\n\nMore words about it.\n\n"
        'num_steps = 4\namount = 1.0  # (live)\nsize = 8\nfail_at = 0\nwait_for = ""\n'
    )


def test_cp_gives_files_that_work(folder: RunsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    said = folder.here(monkeypatch, "recipe", "cp", "counting.py")
    assert said.startswith("wrote my_counting.py, ")
    assert said.endswith("    monarch run my_counting.py\n")
    copied, original = folder.path / "my_counting.py", folder.path / "counting.py"
    assert copied.read_text() == original.read_text()
    copied.write_text("mine")
    with pytest.raises(JobError, match="is there already"):
        folder.here(monkeypatch, "recipe", "cp", "counting.py", "my_counting.py")
    folder.here(monkeypatch, "recipe", "cp", "counting.py", "my_counting.py", "--force")
    assert copied.read_text() == original.read_text()
    for name in ("my-counting.py", "my_counting.txt", "my_counting"):
        with pytest.raises(JobError, match="name it like a Python module"):
            folder.here(monkeypatch, "recipe", "cp", "counting.py", name)
    folder.here(monkeypatch, "recipe", "cp", "ddp", "ddp.toml")
    assert load_config(DDPConfig, folder.path / "ddp.toml").config == DDPConfig()


def as_a_folder(folder: RunsFolder) -> None:
    """The recipe again, in two files of the folder `counted`."""
    config, dataclass, rest = COUNTING.partition("@dataclass(frozen=True)\n")
    body, actor, driven = rest.partition("class Counter(Actor)")
    (folder.path / "counted").mkdir()
    folder.write(
        "counted/__init__.py", '"""Counts, from a folder."""\nfrom .driving import check, run'
    )
    folder.write("counted/settings.py", config + dataclass + body)
    folder.write("counted/driving.py", config + "from .settings import *\n" + actor + driven)


def test_a_recipe_may_be_a_folder(folder: RunsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_folder(folder)
    for name in ("counted", "counted/", "./counted"):
        said = folder.here(monkeypatch, "recipe", "show", name)
        assert said.startswith("Counts, from a folder.\n\nnum_steps = 4\n")
    with pytest.raises(ConfigError, match="'size' cannot be shared"):
        folder.here(monkeypatch, "recipe", "validate", "counted", "size=12", "--procs", "5")


def test_cp_of_a_folder_gives_one_that_imports_nothing_from_the_first(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_a_folder(folder)
    said = folder.here(monkeypatch, "recipe", "cp", "counted")
    assert said.endswith("    monarch run my_counted\n")
    names = ["__init__.py", "driving.py", "settings.py"]
    assert sorted(path.name for path in (folder.path / "my_counted").iterdir()) == names
    with pytest.raises(JobError, match="is there already"):
        folder.here(monkeypatch, "recipe", "cp", "counted", "my_counted")
    for name in ("mine.py", "my-counted"):
        with pytest.raises(JobError, match="my_recipe: this recipe is a folder"):
            folder.here(monkeypatch, "recipe", "cp", "counted", name)
    settings = folder.path / "my_counted/settings.py"
    settings.write_text(settings.read_text().replace("num_steps: int = 4", "num_steps: int = 5"))
    # By a process of its own, which has imported neither.
    assert "num_steps = 5" in folder.monarch("recipe", "show", "my_counted")
    folder.here(monkeypatch, "recipe", "cp", "counted", "my_counted", "--force")
    assert "num_steps: int = 4" in settings.read_text()


def test_cp_on_a_full_disk_leaves_what_was_there(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would leave half of it
    mine = folder.write("mine.py", "mine = 1")
    for name in ("mine.py", "mine.toml"):
        with small_files(20), pytest.raises(JobError, match=f"cannot write {name}: File too large"):
            folder.here(monkeypatch, "recipe", "cp", "counting.py", name, "--force")
    assert mine.read_text() == "mine = 1"
    assert {path.name for path in folder.path.iterdir()} == {"counting.py", "mine.py"}


def test_a_file_that_python_would_not_import_is_refused(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "counting.py").rename(folder.path / "queue.py")
    with pytest.raises(JobError, match=r"queue.py has the name of .*/queue.py: give it another"):
        folder.here(monkeypatch, "recipe", "show", "queue.py")


def test_validate_runs_every_check_and_nothing_else(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "recipe", "validate", "counting.py", "size=12", "--procs", "3")
    assert said == "counting.py can run on this machine alone: 1 host x 3 procs\n"
    with pytest.raises(ConfigError, match="override 'size=12': 'size' cannot be shared"):
        folder.here(monkeypatch, "recipe", "validate", "counting.py", "size=12", "--procs", "5")
    with pytest.raises(ConfigError, match="no recipe"):
        folder.here(monkeypatch, "recipe", "validate", "countin")


def test_prepare_makes_what_the_recipe_says(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "recipe", "prepare", "counting.py", "made")
    assert said == "made made/data.txt\n"
    assert (folder.path / "made").is_dir()
    with pytest.raises(JobError, match="ddp needs nothing prepared"):
        folder.here(monkeypatch, "recipe", "prepare", "ddp")


@pytest.mark.slow
def test_a_copied_ddp_reaches_97_percent_in_under_30_seconds_of_training(
    folder: RunsFolder,
) -> None:
    folder.monarch("recipe", "cp", "ddp", "my_recipe.py")
    said = folder.monarch("run", "my_recipe.py", "evaluate_every=0")
    accuracy = folder.rows("metrics.jsonl")[-1]["held_out_accuracy"]
    assert accuracy > 0.97, said
    steps = [row for row in folder.rows("metrics.jsonl") if "loss" in row]
    assert len(steps) == 264
    assert steps[-1]["time"] - steps[0]["time"] < 30


@pytest.mark.parametrize(
    "text", ["import nothing_there\n", "def run(:\n"], ids=["import", "syntax"]
)
def test_a_recipe_that_cannot_be_imported_is_told_without_our_own_frames(
    folder: RunsFolder, text: str
) -> None:
    (folder.path / "faulty.py").write_text(text)
    said = folder.monarch("run", "faulty.py", status=1)
    assert "faulty.py" in said
    assert "nothing_there" in said or "SyntaxError" in said
    assert "monarch/cli" not in said
    assert "importlib" not in said
    assert len(said.splitlines()) < 8


_TASK = """
from torch.utils.data import DataLoader, IterableDataset

from monarch_recipes import ddp


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(9)


def load_data(config):
    data = ddp.load_data(config)
    return {0}
"""


def test_validate_refuses_data_that_cannot_be_dealt_out(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validate(returned: str, *more: str) -> str:
        name = f"own_{len(list(folder.path.iterdir()))}"
        (folder.path / f"{name}.py").write_text(_TASK.format(returned))
        asked = ["recipe", "validate", "ddp", f"task={name}", *more, "--procs", "2"]
        return folder.here(monkeypatch, *asked)

    assert "ddp can run on" in validate("ddp.Data(DataLoader(data.train), data.held_out)")
    with pytest.raises(ConfigError, match="return Data"):
        validate("DataLoader(data.train)")
    with pytest.raises(ConfigError, match="say num_steps"):
        validate("ddp.Data(Stream(), data.held_out)")
    assert "ddp can run on" in validate("ddp.Data(Stream(), data.held_out)", "num_steps=4")
    said = validate("open('/nowhere/at/all')")
    assert "the data of ddp could not be looked at here: FileNotFoundError" in said
    assert "ddp can run on" in said
