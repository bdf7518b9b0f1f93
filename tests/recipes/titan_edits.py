"""Edits of the small Llama that fail when they run, each in another way, and their fixes.

The model draws random numbers, counts in attributes of its own, in a buffer and in a list of the
module: what is not put back shows in the losses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from monarch.config_file import load_config
from monarch_recipes import titan
from monarch_recipes.titan import recipe
from monarch_recipes.titan.config import TitanConfig
from monarch_recipes.titan.training import TitanStep
from tests.recipes.held_run import HeldRun
from tests.recipes.titan_support import FORWARD, RETURN_LOSS, keys
from tests.support import wait_for

_RATE = "    return learning_rate_factor(step, num_warmup_steps, num_steps)\n"
_TEXT = '    return document["text"]\n'
_IMPORTS = "import dataclasses\n"


@dataclass(frozen=True)
class Edit:
    """Lines that are put where they fail; on one rank, where it says so."""

    name: str
    forward: str = ""
    after_forward: str = ""
    loss: str = ""
    rate: str = ""
    text: str = ""
    error: str = ""  # a part of what the hold says; none where a process ends
    is_loop: bool = False


ON_RANK_1 = 'if os.environ["RANK"] == "1": '
EDITS = (
    Edit("name", forward="documint", error="documint"),
    Edit("name on one rank", forward=f"{ON_RANK_1}documint", error="documint"),
    Edit("loss", loss="labelz.sum()", error="labelz"),
    Edit("shape", loss="logits = logits @ logits.new_ones(3, 3)", error="RuntimeError"),
    Edit(
        "backward",
        after_forward="out.register_hook(lambda gradient: gradient[:1, :1, :1])",
        error="hook",
    ),
    Edit(
        "backward on one rank",
        after_forward=f"{ON_RANK_1}out.register_hook(lambda gradient: 1 / 0)",
        error="ZeroDivisionError",
    ),
    Edit("after the optimizer", rate="raise ValueError('rate')", error="rate"),
    Edit("data", text="raise KeyError('words')", error="words"),
    Edit("memory", loss="raise MemoryError('no room')", error="no room"),
    Edit("exit", forward="raise SystemExit(3)", error="SystemExit"),
    Edit(
        "state",
        forward="self.calls, self.seen[0], self.more = 100, 5.0, 1; SEEN.clear(); "
        "torch.manual_seed(3); next(self.parameters()).requires_grad_(False); 1 / 0",
        error="ZeroDivisionError",
    ),
    Edit(
        "in a collective",
        loss=f"{ON_RANK_1}raise OSError('gone')\n    torch.distributed.all_reduce(torch.zeros(1))",
        error="gone",
    ),
    Edit("loop", loss="while True: pass", is_loop=True),
)  # fmt: skip


def text_with(
    text: str, fix: int, edit: Edit | None = None, *, keeps_own_state: bool = True
) -> str:
    """The module with a failing edit, or with the fix of that number, which changes the loss. New
    processes do not have what it ``keeps`` in names of its own."""
    edit = edit or Edit("")

    def put(text: str, old: str, new: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    text = put(
        text, _IMPORTS,
        f"import os\nimport torch\n{_IMPORTS}\nSEEN = []\n"
        # Digests of all shards, also of those that no other rank has.
        "from monarch_recipes.titan.training import Training\n"
        "Training._groups_of_one = lambda self: set()\n",
    )  # fmt: skip
    text = put(
        text, FORWARD,
        "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        if not hasattr(self, 'seen'):\n"
        "            self.register_buffer('seen', torch.zeros(2), persistent=False)\n"
        "        self.seen += 1\n"
        "        SEEN.append(self.calls)\n"
        f"        {edit.forward or 'pass'}\n"
        f"{FORWARD.replace('return', 'out =')}"
        f"        {edit.after_forward or 'pass'}\n"
        "        return out\n",
    )  # fmt: skip
    text = put(
        text, RETURN_LOSS,
        f"    {edit.loss or 'pass'}\n"
        f"    factor = 1 + {fix} / 64 + 0.01 * torch.rand(())\n"
        f"    factor += {1e-4 * keeps_own_state} * len(SEEN)\n"
        f"{RETURN_LOSS.replace('return', 'return factor *')}",
    )  # fmt: skip
    text = put(text, _RATE, f"    {edit.rate or 'pass'}\n{_RATE}")
    return put(text, _TEXT, f"    {edit.text or 'pass'}\n{_TEXT}")


@dataclass
class Seen:
    """What came of each step on all ranks."""

    losses: dict[int, list[float]] = field(default_factory=dict)
    digests: dict[int, list[Any]] = field(default_factory=dict)

    def note(self, results: list[TitanStep]) -> None:
        in_order = sorted(results, key=lambda one: one.rank)
        step = in_order[0].step
        self.losses[step] = [one.values.get("loss", 0.0) for one in in_order]
        self.digests[step] = [sorted(one.fingerprint.items()) for one in in_order]


def edited_run(
    root: Path,
    name: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    edits: tuple[Edit, ...] = EDITS,
    *,
    fails: bool,
    num_ranks: int = 2,
    keeps_own_state: bool = True,
) -> tuple[Seen, HeldRun]:
    """A run in which each edit is pushed after another step, and held and fixed in the same step;
    or only the fixes are pushed, where nothing ``fails``."""
    seen = Seen()
    run = HeldRun(root, name)
    run.record.procs_per_host = num_ranks
    base = (root / file).read_text()
    edited = functools.partial(text_with, base, keeps_own_state=keeps_own_state)
    steps = [2 + 2 * number for number in range(len(edits))]
    settings = [
        "model.flavor=test", f"training.steps={steps[-1] + 3}", "checkpoint.interval=1000",
        "validation.enable=true", "validation.freq=5", "validation.steps=2", "metrics.log_freq=1",
        "training.seq_len=32", "training.local_batch_size=16", "validation.seq_len=32",
        "validation.local_batch_size=16",
        "fault_tolerance.fingerprint_every=1", "fault_tolerance.edit_patience_seconds=2",
        "debug.seed=1", *overrides,
    ]  # fmt: skip

    def config() -> Any:
        return load_config(TitanConfig, root / "titan.toml", keys(*settings)).config

    class Noting(recipe.Driver):
        def step(self) -> list[TitanStep]:
            results = super().step()
            seen.note(results)
            return results

    def push(number: int, edit: Edit | None) -> Callable[[], object]:
        return lambda: run.push(file, edited(number + 1, edit))

    monkeypatch.setattr(recipe, "Driver", Noting)
    run.module, run.config_class, run.settings = titan, config, {}
    (root / file).write_text(edited(0))
    for number, (step, edit) in enumerate(zip(steps, edits, strict=True)):
        run.at[step] = push(number, edit if fails else None)
    run.start()
    try:
        for number, edit in enumerate(edits if fails else ()):
            if edit.is_loop:
                wait_for(lambda: any(" takes " in text for text in run.said), 120, "a slow step")
            else:
                held = run.when_held(number + 1)
                assert edit.error in held["error"], (edit.name, held)
                assert held["in_place"] == bool(edit.error), (edit.name, held)
            push(number, None)()
        run.end(300)
    finally:
        run.stop()
        (root / file).write_text(base)
    assert run.error is None, run.error
    return seen, run
