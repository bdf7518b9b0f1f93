"""What edits cost a training of the size that people train: right ones, failing ones, deadly ones.

    python benchmarks/edits.py [ddp]

A transformer of 63 million parameters (756 MB with its optimizer, on each of two ranks) on short
texts. Files are saved and pushed while it trains. Each number is beyond a step of the usual length,
in the time of the training: from the end of the last step before to the end of the first after.
`relaunch` is what the same costs with new programs, from the command to the end of a step.

Another recipe is measured by adding it to `RECIPES`: the text of its task, and how it is run.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import this_host
from monarch.observe.json_rows import json_rows
from monarch.runs import Record
from monarch_sync import Workspace

NUM_EDITS = 5
PATIENCE_SECONDS = 300.0

DDP_TASK = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from monarch_recipes import ddp

WIDTH, NUM_LAYERS, NUM_WORDS, LENGTH = 768, 8, 8000, 16


class Texts:
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        words = torch.Generator().manual_seed(index)
        text = torch.randint(NUM_WORDS, (LENGTH + 1,), generator=words)
        return text[:-1], text[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False)

    def forward(self, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        found = self.layers(self.words(words), mask=mask, is_causal=True)
        return found @ self.words.weight.T


def load_data(config):
    return ddp.Data(Texts(), Texts())


def build_model(config):
    return Model()


def compute_loss(logits, labels):
    # HERE
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def metrics(logits, labels):
    return {"edit": torch.tensor(float(EDIT))}


EDIT = 0
"""


@dataclass
class Benched:
    """A recipe that is measured.

    ``task`` is the text of its ``task.py``: ``# HERE`` is a line in the loss, at which code can be
    inserted, and ``EDIT`` is a number that the task reports. ``run`` runs the recipe until its
    record says that it should stop.
    """

    task: str
    run: Callable[[Record], object]


def run_ddp(record: Record) -> object:
    from monarch_recipes import ddp

    config = ddp.DDPConfig(
        task="task", num_epochs=1, global_batch_size=2, max_micro_batch_size=1, device="cpu",
        evaluate_every=0, checkpoint_every=0, learning_rate=1e-4,
    )  # fmt: skip
    return ddp.run(config, this_host(), record)


RECIPES = {"ddp": Benched(DDP_TASK, run_ddp)}


class Training:
    """A run on a thread of this program, whose steps it notes in place of a display."""

    def __init__(self, root: Path, benched: Benched) -> None:
        self.root = root
        self.task = benched.task
        self.steps: list[tuple[int, float, float]] = []  # step, when it ended, the edit it ran
        self.record = Record(root.parent / "run", self, procs_per_host=2)
        self.record.edits.policy = "hold"
        self.error: BaseException | None = None
        self._workspace = Workspace(dirs={root: ""})
        self._thread = threading.Thread(target=self._run, args=(benched,))
        (root / "task.py").write_text(self.task)
        sys.path.insert(0, str(root))
        importlib.invalidate_caches()
        self._thread.start()

    def _run(self, benched: Benched) -> None:
        try:
            benched.run(self.record)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.record.stop()
        self._thread.join()

    # As a display

    def message(self, text: str) -> None: ...

    def alarm(self, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if "loss" in values:
            self.steps.append((step, time.time(), values.get("edit", 0.0)))

    # What is done to it

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.record.folder / "events.jsonl"
        rows = json_rows(path) if path.exists() else []
        return [one for one in rows if one["kind"] == kind]

    def until(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            if self.error is not None or time.monotonic() > deadline:
                raise SystemExit(f"{what} did not come: {self.error!r}")
            time.sleep(0.002)

    def until_steps(self, number: int) -> None:
        wanted = len(self.steps) + number
        self.until(lambda: len(self.steps) >= wanted, "a step")

    def usual_step(self) -> float:
        """Return the median time of the last five steps, in seconds."""
        ends = [when for _, when, _ in self.steps[-6:]]
        gaps = [later - before for before, later in itertools.pairwise(ends)]
        return statistics.median(gaps)

    def push(self, edit: int, line: str = "pass") -> float:
        """Save the task with ``line`` in its loss, and push it; return the time of the save."""
        text = self.task.replace("# HERE", line).replace("EDIT = 0", f"EDIT = {edit}")
        saved_at = time.time()
        (self.root / "task.py").write_text(text)
        asyncio.run(this_host().sync_workspace(self._workspace)).raise_for_errors()
        return saved_at

    def first_with(self, edit: int) -> tuple[int, float, float]:
        """Wait for the first step that ran this edit.

        Returns the number of the step before it, and the times at which that step and the first
        ended.
        """
        self.until(lambda: self.steps and self.steps[-1][2] == edit, f"edit {edit}")
        at = next(n for n, one in enumerate(self.steps) if one[2] == edit)
        return self.steps[at - 1][0], self.steps[at - 1][1], self.steps[at][1]


def show(what: str, seconds: float, more: str = "") -> None:
    print(f"{what:<66} {seconds * 1000:8.0f} ms{more}", flush=True)


def right_edits(training: Training) -> None:
    costs, from_save = [], []
    for edit in range(1, NUM_EDITS + 2):
        training.until_steps(6)
        usual = training.usual_step()
        saved_at = training.push(edit)
        _, before, after = training.first_with(edit)
        costs.append(after - before - usual)
        from_save.append(after - saved_at - usual)
    show("the first edit of a run, beyond a step", costs[0], "  (it finds the memory)")
    show(f"an edit that works, beyond a step, median of {NUM_EDITS}", statistics.median(costs[1:]))
    show("... from the save, beyond a step", statistics.median(from_save[1:]))


def failing_edits(training: Training) -> None:
    costs = []
    for number in range(1, NUM_EDITS + 1):
        edit = 100 + number
        training.until_steps(6)
        usual, num_held = training.usual_step(), len(training.events("held"))
        training.push(edit, "undefined_name")
        training.until(lambda: len(training.events("held")) > num_held, "a hold")  # noqa: B023
        saved_at = training.push(edit)
        _, _, after = training.first_with(edit)
        costs.append(after - saved_at - usual)
    assert all(one["in_place"] for one in training.events("held"))
    show("a NameError: from the save of the fix, beyond a step", statistics.median(costs))


def deadly_edit(training: Training, relaunch: float) -> None:
    """Measure how long training takes to go on after new code has ended the process of rank 1."""
    flag = training.root.parent / "dies"
    flag.touch()
    line = (
        f"if dist.get_rank() == 1 and os.path.exists({str(flag)!r}): "
        f"os.unlink({str(flag)!r}); os._exit(9)"
    )
    training.until_steps(6)
    usual = training.usual_step()
    training.push(200, line)
    step, before, after = training.first_with(200)
    seconds = after - before
    told = [one["text"] for one in training.events("resumed")]
    share = f"  ({seconds / relaunch:.2f} of a relaunch; {told[-1] if told else 'from a file'})"
    show("a rank that new code ends: from the last step to the next", seconds, share)
    show("... beyond a step", seconds - usual)
    steps = [one for one, _, _ in training.steps]
    assert steps == sorted(set(steps)), f"steps were made again after step {step}"


def kept_overhead(training: Training) -> None:
    """Measure the work before a step on code that is not new.

    Such work is done in runs that have been edited before.
    """
    import task  # type: ignore[import-not-found]
    import torch

    from monarch.runs.hold.state_copies import watch
    from monarch.runs.hold.tensor_copies import ValueSamples

    class Trainer:
        def __init__(self) -> None:
            self.model = task.Model()
            self.optimizer = torch.optim.AdamW(self.model.parameters())
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()

    trainer, samples, usual = Trainer(), ValueSamples(), training.usual_step()
    taken = []
    for _ in range(10):
        started = time.thread_time()
        watch(trainer, samples, usual)
        taken.append(time.thread_time() - started)
    share = statistics.median(taken) / usual
    show("a step that is not new: what is looked at before", statistics.median(taken),
         f"  ({100 * share:.2f} % of a step)")  # fmt: skip


def first_step(name: str) -> None:
    """Begin a training in this process, and end it after the first step, as a relaunch would."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        root.mkdir()
        training = Training(root, RECIPES[name])
        training.until_steps(1)
        print("first step", flush=True)
        training.stop()


def main(name: str) -> None:
    started = time.time()
    words = [sys.executable, __file__, name, "--first-step"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert "first step" in program.stdout.readline()
        relaunch = time.time() - started
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        root.mkdir()
        training = Training(root, RECIPES[name])
        try:
            training.until_steps(8)
            print(f"{name}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            show("relaunch", relaunch)
            show("a step", training.usual_step())
            right_edits(training)
            failing_edits(training)
            assert not list(training.record.checkpoint_dir.glob("*")), "a file was written"
            deadly_edit(training, relaunch)
            kept_overhead(training)
        finally:
            training.stop()


if __name__ == "__main__":
    recipe = next((one for one in sys.argv[1:] if one in RECIPES), "ddp")
    if "--first-step" in sys.argv:
        first_step(recipe)
    else:
        main(recipe)
