"""An edit that fails when it runs, in TorchTitan's trainer: held, and made again in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import load_config
from monarch.runs.hold.hold_report import HoldReport
from monarch_recipes import titan
from monarch_recipes.titan.config import TitanConfig
from monarch_recipes.titan.tiny import prepare
from tests.recipes.held_run import NO_ROOM, HeldRun, importable
from tests.recipes.titan_support import FORWARD, LOSS, keys

pytestmark = pytest.mark.timeout(300)

SMALL = keys(
    "model.flavor=test", "training.steps=14", "checkpoint.interval=4", "validation.enable=false",
    "metrics.log_freq=1",
)  # fmt: skip

BAD_LOSS = LOSS.replace("labels", "documint")


def rename_model(root: Path, name: str) -> str:
    """Its file. Processes that this one has made before know where another test's module is."""
    model, config = root / "tiny_llama.py", root / "titan.toml"
    (root / f"{name}.py").write_text(model.read_text().replace("tiny_llama", name))
    model.unlink()
    config.write_text(config.read_text().replace("tiny_llama", name))
    return f"{name}.py"


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
def test_it_holds_and_makes_the_step_again_without_a_checkpoint(root: Path, run: HeldRun) -> None:
    name = rename_model(root, "llama_held")
    text = (root / name).read_text()
    assert text.count(LOSS) == 1
    run.at[6] = lambda: run.push(name, text.replace(LOSS, BAD_LOSS))
    run.start()
    held = run.when_held()
    assert "labels" in held["error"]
    assert (held["in_place"], held["file"]) == (True, name)
    assert "weights and optimizer are as they were" in held["text"]
    assert run.push(name, text + "# mended\n").ok
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, 15))
    (mended,) = run.events("mended")
    assert mended["text"].startswith("step 7 went well on generation "), mended
    assert not run.events("begun_again", "respawned")
    assert [event["step"] for event in run.events("saved")] == [4, 8, 12, 14]


@pytest.mark.long
def test_where_hosts_have_no_room_a_checkpoint_is_written_before_new_code_is_tried(
    root: Path, run: HeldRun
) -> None:
    name = rename_model(root, "llama_roomless")
    text = (root / name).read_text() + NO_ROOM
    (root / name).write_text(text)
    run.at[6] = lambda: run.push(name, text.replace(LOSS, LOSS + "    import os; os._exit(3)\n"))
    run.start()
    assert run.when_held()["doing"] == "step 7"
    assert run.push(name, text + "# fixed\n").ok
    run.end()
    assert run.error is None, run.error
    run.said_of_room()
    assert [event["step"] for event in run.events("saved")] == [4, 6, 8, 12, 14]
    assert run.steps == list(range(1, 15)), "no step is made again"


@pytest.mark.long
@pytest.mark.parametrize("watched", [True, False])
def test_code_that_cannot_make_its_first_step_holds_where_a_person_watches(
    root: Path, run: HeldRun, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr(HoldReport, "is_watched", lambda self: watched)
    name = rename_model(root, f"llama_watched_{watched}")
    text = (root / name).read_text()
    (root / name).write_text(text.replace(LOSS, BAD_LOSS))
    run.start()
    if not watched:
        run.end()
        assert "labels" in str(run.error)
        assert not run.events("held")
        return
    held = run.when_held()
    assert "labels" in held["error"]
    assert (held["doing"], held["in_place"]) == ("step 1", False)
    assert "after the fix it begins again, in new processes" in held["text"]
    assert run.push(name, text).ok
    run.end()
    assert run.error is None, run.error
    assert run.steps == list(range(1, 15))


POKED = "        poke(self.norm.weight)\n"
POKE = """

import os

import torch


def poke(value):
    file = Path(__file__).parent.parent / f"poke-{os.environ['RANK']}"
    if file.exists():
        file.unlink()
        with torch.no_grad():
            local = value.to_local() if hasattr(value, "to_local") else value
            local.view(-1)[0] += 0.25
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "layout", ["tensor_parallel_degree=2", "data_parallel_replicate_degree=2"], ids=["tp", "ddp"]
)
def test_replicas_that_have_come_apart_are_named_and_are_alike_again(
    root: Path, run: HeldRun, layout: str
) -> None:
    """Once by the state of rank 0, once from the checkpoint."""
    file = rename_model(root, f"llama_apart_{layout[:4]}")
    text = (root / file).read_text()
    assert text.count(FORWARD) == 1
    (root / file).write_text(text.replace(FORWARD, POKED + FORWARD) + POKE)
    overrides = [*SMALL, f"parallelism.{layout}", "fault_tolerance.fingerprint_every=1"]
    run.config_class = lambda: load_config(TitanConfig, root / "titan.toml", overrides).config
    run.at[6] = lambda: (root.parent / "poke-1").touch()
    run.start()
    held = run.when_held()
    (told,) = run.events("apart")
    assert told["text"].startswith("rank 1 differs from rank 0 in ")
    assert any("norm.weight" in one for one in told["parameters"]), told
    assert held["choices"] == ["c", "t"]
    run.at[9] = lambda: (root.parent / "poke-1").touch()
    run.answer("t")
    assert run.when_held(2)["choices"] == ["c", "t"]
    assert len(run.events("alike")) == 1
    assert run.events("apart")[1]["agreed_step"] == 9
    run.answer("c")
    run.end()
    assert run.error is None, run.error
    assert run.steps[-1] == 14
    assert run.events("resumed")[-1]["step"] == 8
