"""Edits of what TorchTitan's trainer only calls as it is made: told at the push, and tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tests.recipes.titan_support  # noqa: F401
from monarch.config_file import load_config
from monarch_recipes.titan.config import TitanConfig
from monarch_recipes.titan.next_start import TitanNextStart
from monarch_recipes.titan.tiny import prepare
from monarch_recipes.titan.versions import titan
from monarch_reload import Reloader
from tests.recipes.held_run import importable
from tests.recipes.titan_support import IS_0_3, RETURN_LOSS, keys

GONE_FLAVOR = "'test' is none of tiny_llama's: mini, tests"
# What is called only as a trainer is made, and an edit of it that changes nothing.
BUILT = (
    ("test", ("def test():\n", "def test():\n    some = 1\n"))
    if IS_0_3
    else ("build_loss", ("    return compute_loss\n", "    loss = compute_loss\n    return loss\n"))
)


class Live:
    """What a trainer has of a small model, and the file that it is made by."""

    def __init__(self, root: Path, *, num_parts: int = 1) -> None:
        self.file = root / "tiny_llama.py"
        overrides = keys("model.flavor=test", "training.seq_len=32")
        config = load_config(TitanConfig, root / "titan.toml", overrides).config
        with Reloader([root]) as self.reloader:
            model = titan.build_model(config)
            adam = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
            engine: Any = SimpleNamespace(
                model_parts=[model],
                optimizers=[adam],
                parallel_dims=SimpleNamespace(pp_enabled=num_parts > 1, ep_enabled=False),
            )
            self.next_start = TitanNextStart(config, engine)

    def edit(self, *pairs: tuple[str, str]) -> list[str]:
        text = self.file.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        self.file.write_text(text)
        change: Any = self.reloader.reload([self.file])
        self.next_start.look(change, generation=2)
        return list(change.warnings)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = tmp_path / "project"
    prepare(made)
    monkeypatch.chdir(made)
    undo = importable(made)
    yield made
    undo()


def test_what_the_trainer_is_made_by_counts_from_the_next_start(root: Path) -> None:
    live = Live(root)
    assert live.edit((RETURN_LOSS, RETURN_LOSS.replace("return", "return 1 *"))) == []
    built, pair = BUILT
    assert live.edit(pair) == [f"tiny_llama.{built} counts from the next start of the run"]
    assert live.edit(("sorted(Path(folder)", "reversed(Path(folder)")) == [
        "tiny_llama.load_texts counts from the next start of the run"
    ]


def test_other_sizes_are_tried_against_the_live_model(root: Path) -> None:
    live = Live(root)
    told, misfit = live.edit(("dim=64, n_layers=2", "dim=32, n_layers=2"))[-2:]
    assert told == "the sizes of tiny_llama test count from the next start of the run"
    assert "cannot go on from this run's checkpoints: 'tok_embeddings.weight' has the" in misfit
    assert live.edit(("dim=32, n_layers=2", "dim=64, n_layers=2"))[-1] == told
    failure = live.edit(("dim=64, n_layers=2", "dim=64, n_layers=None"))[-1]
    assert "the next start will fail: " in failure


def test_a_model_with_another_layer_is_tried(root: Path) -> None:
    live = Live(root)
    init = (
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.more = torch.nn.Linear(2, 2)\n\n    def forward(self, tokens"
    )
    warnings = live.edit(
        ("    def forward(self, tokens", init), ("import json\n", "import json\nimport torch\n")
    )
    assert any("the new model has 'more." in one for one in warnings), warnings


def test_a_stage_of_a_pipeline_is_not_compared(root: Path) -> None:
    told = Live(root, num_parts=2).edit(("dim=64, n_layers=2", "dim=32, n_layers=2"))
    assert told[-1] == "the sizes of tiny_llama test count from the next start of the run"


def test_a_flavor_that_is_gone_is_told(root: Path) -> None:
    is_named = ("def test()", "def tests()") if IS_0_3 else ('    "test": Tr', '    "tests": Tr')
    [told] = Live(root).edit(is_named)
    assert told.startswith("the next start will fail: ")
    assert ("'test' not found in tiny_llama" if IS_0_3 else GONE_FLAVOR) in told
