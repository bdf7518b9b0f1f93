"""What edits cost a training of the size that people train: right ones, failing ones, deadly ones.

    python benchmarks/edits.py [ddp | titan]

On CPUs a transformer of some 63 million parameters (756 MB with its optimizer) on short texts, with
two ranks. On a machine with GPUs, a rank on each: titan's is a Llama of 826 million parameters then
(9.9 GB with its optimizer), in bfloat16. Files are saved and pushed while it trains. Each number is
beyond a step of the usual length, in the time of the training: from the end of the last step before
to the end of the first after. `relaunch` is what the same costs with new programs, from the command
to the end of a step.

Another recipe is measured by adding it to `RECIPES`.
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
HAS_GPU = os.path.exists("/dev/nvidiactl")

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

    ``prepare`` writes a project into a folder, and returns its file that is edited: ``# HERE`` is a
    line in its loss, at which code can be inserted, and ``EDIT = 0`` is a number that the training
    reports. ``run`` runs the recipe in the folder until its record says that it should stop.
    ``edit_in`` reads the number from the metrics of a step.
    """

    prepare: Callable[[Path], Path]
    run: Callable[[Path, Record], object]
    edit_in: Callable[[Mapping[str, float]], float]


def prepare_ddp(root: Path) -> Path:
    path = root / "task.py"
    path.write_text(DDP_TASK)
    return path


def run_ddp(root: Path, record: Record) -> object:
    from monarch_recipes import ddp

    config = ddp.DDPConfig(
        task="task", num_epochs=1, global_batch_size=2, max_micro_batch_size=1,
        device="cuda" if HAS_GPU else "cpu", evaluate_every=0, checkpoint_every=0,
        learning_rate=1e-4,
    )  # fmt: skip
    return ddp.run(config, this_host(), record)


# In place of a flavor, the loss and its first line of `tiny_llama.py`.
TITAN_SIZES = "dim=2048, n_layers=16, n_heads=16" if HAS_GPU else "dim=768, n_layers=9, n_heads=12"
TITAN_FLAVOR = """FLAVORS = {
    "real": TransformerModelArgs(
        SIZES, vocab_size=1024, multiple_of=32, rope_theta=10000
    ),
"""
TITAN_LOSS = """    # HERE
    # A constant, which changes no gradient.
    return 1000 * EDIT * labels.numel() + cross_entropy("""
TITAN_KEYS = [
    "model.flavor=real", "training.steps=1000000", "metrics.log_freq=1", "validation.enable=false",
    "checkpoint.enable=false", "optimizer.lr=1e-4",
    *(("training.local_batch_size=4", "training.seq_len=2048",
       "training.mixed_precision_param=bfloat16") if HAS_GPU else
      ("training.local_batch_size=1", "training.seq_len=16")),
]  # fmt: skip


def prepare_titan(root: Path) -> Path:
    from monarch_recipes.titan.tiny import prepare

    prepare(root)
    path = root / "tiny_llama.py"
    text = path.read_text()
    for line, new in (
        ("FLAVORS = {\n", TITAN_FLAVOR.replace("SIZES", TITAN_SIZES)),
        ("    return cross_entropy(", TITAN_LOSS),
        ("class TinyLlama", "EDIT = 0\n\n\nclass TinyLlama"),
        ("import json\n", "import json\nimport os\n"),
    ):
        assert text.count(line) == 1, line
        text = text.replace(line, new)
    path.write_text(text)
    return path


def run_titan(root: Path, record: Record) -> object:
    from monarch.config_file import load_config
    from monarch_recipes import titan
    from monarch_recipes.titan.config import TitanConfig

    os.chdir(root)
    config = load_config(TitanConfig, root / "titan.toml", TITAN_KEYS).config
    return titan.run(config, this_host(), record)


RECIPES = {
    "ddp": Benched(prepare_ddp, run_ddp, lambda values: values.get("edit", 0.0)),
    "titan": Benched(prepare_titan, run_titan, lambda values: values["loss"] // 1000),
}


class Training:
    """A run on a thread of this program, whose steps it notes in place of a display."""

    def __init__(self, root: Path, benched: Benched) -> None:
        self.root = root
        self.path = benched.prepare(root)
        self.text = self.path.read_text()
        self.steps: list[tuple[int, float, float]] = []  # step, when it ended, the edit it ran
        self.record = Record(root.parent / "run", self, procs_per_host=num_ranks())
        self.record.edits.policy = "hold"
        self.error: BaseException | None = None
        self._benched = benched
        self._workspace = Workspace(dirs={root: ""})
        self._thread = threading.Thread(target=self._run)
        sys.path.insert(0, str(root))
        importlib.invalidate_caches()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._benched.run(self.root, self.record)
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
            self.steps.append((step, time.time(), self._benched.edit_in(values)))

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
        """Save the file with ``line`` in its loss, and push it; return the time of the save."""
        text = self.text.replace("# HERE", line).replace("EDIT = 0", f"EDIT = {edit}")
        saved_at = time.time()
        self.path.write_text(text)
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


def num_ranks() -> int:
    """Return two, or the number of GPUs."""
    if not HAS_GPU:
        return 2
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return torch.cuda.device_count()


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


def fix_after(training: Training, edit: int, line: str) -> float:
    """Push ``line``, and its fix when the run holds; return the time from the save of the fix to
    the end of a step with it, beyond a step."""
    training.until_steps(6)
    usual, num_held = training.usual_step(), len(training.events("held"))
    training.push(edit, line)
    training.until(lambda: len(training.events("held")) > num_held, "a hold")
    saved_at = training.push(edit)
    _, _, after = training.first_with(edit)
    return after - saved_at - usual


def failing_edits(training: Training) -> None:
    costs = [fix_after(training, 100 + n, "undefined_name") for n in range(1, NUM_EDITS + 1)]
    assert all(one["in_place"] for one in training.events("held"))
    show("a NameError: from the save of the fix, beyond a step", statistics.median(costs))


def assert_on_device(training: Training) -> None:
    """Measure the fix of an edit that fails on the GPU itself, with which its context is lost."""
    seconds = fix_after(training, 150, "labels = labels + 10**6")
    told = [one["text"] for one in training.events("resumed")]
    show("an assert of the device: from the save of the fix", seconds, f"  ({told[-1:]})")


def deadly_edit(training: Training, relaunch: float) -> None:
    """Measure how long training takes to go on after new code has ended the last rank's process."""
    flag = training.root.parent / "dies"
    flag.touch()
    line = (
        f"if os.environ['RANK'] == '{num_ranks() - 1}' and os.path.exists({str(flag)!r}): "
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
            if HAS_GPU:
                assert_on_device(training)
            if name == "ddp":
                kept_overhead(training)
        finally:
            training.stop()


if __name__ == "__main__":
    recipe = next((one for one in sys.argv[1:] if one in RECIPES), "ddp")
    if "--first-step" in sys.argv:
        first_step(recipe)
    else:
        main(recipe)
