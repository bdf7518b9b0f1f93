"""An edit that fails when it runs, in TorchTitan's trainer: held; then from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import load_config
from monarch.runs.hold_report import HoldReport
from monarch_recipes import titan
from monarch_recipes.titan.config import TitanConfig
from monarch_recipes.titan.tiny import prepare
from tests.recipes.held_run import HeldRun, importable

pytestmark = pytest.mark.timeout(300)

SMALL = (
    "model.flavor=test", "training.steps=14", "checkpoint.interval=4", "validation.enable=false",
    "metrics.log_freq=1",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = tmp_path / "project"
    prepare(made)
    monkeypatch.chdir(made)
    undo = importable(made)
    yield made
    undo()


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    def config() -> Any:
        return load_config(TitanConfig, root / "titan.toml", SMALL).config

    made = HeldRun(root, "titan")
    made.module, made.config_class, made.settings = titan, config, {}
    yield made
    made.stop()


@pytest.mark.long
def test_it_holds_and_goes_on_from_its_newest_checkpoint(root: Path, run: HeldRun) -> None:
    text = (root / "tiny_llama.py").read_text()
    old = "def compute_loss(logits, labels):\n"
    assert text.count(old) == 1
    bad = text.replace(old, old.replace("labels", "documint"))
    run.at[6] = lambda: run.push("tiny_llama.py", bad)
    run.start()
    held = run.when_held()
    assert "labels" in held["error"]
    assert (held["in_place"], held["file"]) == (False, "tiny_llama.py")
    assert run.push("tiny_llama.py", text + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == 14
    (mended,) = run.events("mended")
    assert mended["text"].startswith("step 5 went well on generation 2: the run goes on"), mended
    (again,) = run.events("respawned")
    assert "from step 5; steps 5 to 6 are made again" in again["text"], again


@pytest.mark.long
@pytest.mark.parametrize("watched", [True, False])
def test_code_that_cannot_make_its_first_step_holds_where_a_person_watches(
    root: Path, run: HeldRun, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: watched)
    # Processes that this one has made before know where another test's module is.
    name = f"llama_watched_{watched}"
    text = (root / "tiny_llama.py").read_text().replace("tiny_llama", name)
    (root / "tiny_llama.py").unlink()
    config = root / "titan.toml"
    config.write_text(config.read_text().replace("tiny_llama", name))
    old = "def compute_loss(logits, labels):\n"
    (root / f"{name}.py").write_text(text.replace(old, old.replace("labels", "documint")))
    run.start()
    if not watched:
        run.end()
        assert "labels" in str(run.error)
        assert not run.events("held")
        return
    held = run.when_held()
    assert "labels" in held["error"]
    assert (held["doing"], held["in_place"]) == ("step 1", False)
    assert "after the mend it begins again, in new processes" in held["text"]
    assert run.push(f"{name}.py", text).ok
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, 15))
