"""Edits that fail when they run: the run holds, the mend goes on, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from tests.recipes.held_run import LOSS, TASK, HeldRun, importable

pytestmark = pytest.mark.timeout(300)

STEPS = 44
RANK_1 = "    if dist.get_rank() == 1:\n"
BACKWARD = """

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in backward")
"""

# What is put in front of the loss, or in the place of another line; and what is to be told of it.
EDITS: dict[str, tuple[Callable[[str], str], str]] = {
    "name": (lambda t: t.replace("(logits, labels)\n\n", "(logits, labelz)\n\n"), "labelz"),
    "shape": (lambda t: t.replace(LOSS, LOSS.replace("(logits,", "(logits[1:],")), "batch_size"),
    "argument": (lambda t: t.replace(LOSS, LOSS.replace(", labels", "")), "argument"),
    "import": (lambda t: t.replace(LOSS, "    import nowhere\n" + LOSS), "nowhere"),
    "loop": (lambda t: t.replace(LOSS, "    while True:\n        pass\n" + LOSS), "not ended"),
    "memory": (lambda t: t.replace(LOSS, "    raise MemoryError('no room')\n"), "MemoryError"),
    "one rank": (
        lambda t: t.replace(LOSS, RANK_1 + "        raise KeyError('mine')\n" + LOSS),
        "KeyError",
    ),
    "backward": (
        lambda t: t.replace(LOSS, LOSS.replace("(logits,", "(Fails.apply(logits),")) + BACKWARD,
        "in backward",
    ),
    "data": (
        lambda t: t.replace("self.samples[index]", "self.samplez[index]"),
        "samplez",
    ),
    "exit": (lambda t: t.replace(LOSS, "    raise SystemExit(3)\n"), "SystemExit"),
    "rate on one rank": (
        lambda t: t.replace(
            "    return config.learning_rate",
            RANK_1 + "        return config.rate\n    return config.learning_rate",
        ),
        "rate",
    ),
    "a loop on one rank": (
        lambda t: t.replace(LOSS, RANK_1 + "        while True: pass\n" + LOSS),
        "not ended",
    ),
}  # fmt: skip


@pytest.fixture
def run(root: Path) -> Iterator[HeldRun]:
    made = HeldRun(root)
    yield made
    made.stop()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "project"
    made.mkdir()
    (made / "task.py").write_text(TASK)
    undo = importable(made)
    with configured(edit_patience_seconds=2.0):
        yield made
    undo()


def test_no_edit_that_fails_ends_a_run_or_changes_what_it_learns(root: Path, run: HeldRun) -> None:
    undisturbed = HeldRun(root, "undisturbed")
    undisturbed.start()
    undisturbed.end()
    assert undisturbed.error is None, undisturbed.error

    reports = []
    for number, (edit, _) in enumerate(EDITS.values()):
        text = edit(TASK)
        assert text != TASK
        run.at[2 * number + 2] = lambda text=text: reports.append(run.push("task.py", text))
    run.start()
    for number, (name, (_, told)) in enumerate(EDITS.items(), 1):
        held = run.when_held(number)
        assert told in held["error"], (name, held)
        assert held["doing"] == f"step {2 * number + 1}", name
        assert held["in_place"], (name, run.said)
        if "rank" in name:
            assert held["ranks"] == [1], name
        assert held["file"] == "task.py", (name, held)
        assert held["line"] > 0, (name, held)
        assert run.push("task.py", TASK + f"# {number}\n").ok
    run.end()
    assert run.error is None, run.error
    assert all(report.ok for report in reports)
    assert len(run.events("mended")) == len(EDITS)
    assert run.steps == list(range(1, STEPS + 1)), "no step is made twice, or left out"
    assert run.digest() == undisturbed.digest()
