"""A DDP run in this process's own procs, whose files are edited, and pushed, while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import io
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from monarch.actor import this_host
from monarch.observe.json_rows import json_rows
from monarch.runs import Record
from monarch.runs.record.folder import RunFolder
from monarch_recipes import ddp
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from monarch_sync import SyncReport, Workspace
from tests.support import wait_for

TASK = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from monarch_recipes import ddp


class Samples:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def load_data(config):
    data = ddp.load_data(config)
    return ddp.Data(Samples(data.train), data.held_out)


def build_model(config):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 10)
    )


def compute_loss(logits, labels):
    return functional.cross_entropy(logits, labels)


def learning_rate_at(config, step, num_steps):
    return config.learning_rate
"""

LOSS = "    return functional.cross_entropy(logits, labels)\n"
# To be put before a task: its hosts have a megabyte free.
NO_ROOM = "from monarch.runs.hold import copy_room\n\ncopy_room.available_bytes = lambda: 1e6\n"


class HeldRun:
    """Trains on a thread; the test edits ``task.py``, or the copy of the recipe, and looks."""

    def __init__(self, root: Path, name: str = "ddp", **settings: Any) -> None:
        self.root = root
        self.workspace = Workspace(dirs={root: ""})
        self.said: list[str] = []
        self.steps: list[int] = []
        self.at: dict[int, Callable[[], object]] = {}  # what to do after a step, on its thread
        self.record = Record(root.parent / name, self, procs_per_host=2)
        self.record.edits.policy = "hold"
        self.settings: dict[str, Any] = {
            "task": "task", "num_epochs": 1, "global_batch_size": 32, "evaluate_every": 0,
            "checkpoint_every": 0, "device": "cpu", "collective_timeout_seconds": 60.0, **settings,
        }  # fmt: skip
        self.module: Any = ddp
        self.config_class: Any = ddp.DDPConfig
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="held-run")

    def _run(self) -> None:
        try:
            config = self.config_class(**self.settings)
            self.outcome = self.module.run(config, this_host(), self.record)
        except BaseException as error:
            self.error = error

    def have_slow_steps_held(self) -> None:
        """A person presses k as soon as the loss is told to take long. On a busy machine others
        things may, too."""
        pressed = itertools.cycle(["k", ""])  # After each there is none for the moment.

        def take() -> str:
            told = next((text for text in reversed(self.said) if " takes " in text), "")
            return next(pressed) if "in `compute_loss`" in told else ""

        impatient = SimpleNamespace(take=take)
        self.record.listen_to_keys = lambda: contextlib.nullcontext(impatient)

    def start(self) -> None:
        self._thread.start()

    def end(self, seconds: float = 120.0) -> None:
        """Wait for the end of it."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "\n".join([*self.said, f"steps: {self.steps[-3:]}"])

    def stop(self) -> None:
        if self._thread.ident is not None:
            self.record.stop()
            self.end()

    # As a display

    def message(self, text: str) -> None:
        self.said.append(text)

    def alarm(self, text: str) -> None:
        self.said.append(text)

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if "loss" not in values:
            return
        self.steps.append(step)
        act = self.at.get(step)
        if act is not None:
            act()
            del self.at[step]

    # What happens to it

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        rows = json_rows(self.record.folder / "events.jsonl")
        return [event for event in rows if event["kind"] in kinds]

    def push(self, name: str, text: str) -> SyncReport:
        """Save a file, and bring it to the procs."""
        (self.root / name).write_text(text)
        return asyncio.run(this_host().sync_workspace(self.workspace))

    def when_step(self, step: int) -> None:
        wait_for(
            lambda: self.error or (self.steps and self.steps[-1] >= step),
            120.0,
            lambda: "\n".join([f"step {step}", *self.said]),
        )
        assert self.error is None, self.error

    def when_held(self, number: int = 1) -> dict[str, Any]:
        """Its event, once it holds for that many times."""
        wait_for(
            lambda: self.error or len(self.events("held")) >= number or not self._thread.is_alive(),
            120.0, lambda: "\n".join([f"hold {number}", *self.said]),
        )  # fmt: skip
        assert self.error is None, self.error
        assert len(self.events("held")) >= number, "\n".join(self.said)
        return self.events("held")[number - 1]

    def answer(self, choice: str) -> None:
        """Give the run that holds one of its answers, as a person's command does from elsewhere."""
        assert choice in self.events("held")[-1]["choices"]
        RunFolder(self.record.folder).write_text("answer", choice)

    def said_of_room(self) -> dict[str, Any]:
        """The one event that says there is no room for copies."""
        (told,) = self.events("copies")
        assert "a copy of the state in the host's memory takes" in told["text"]
        assert "and the host has 1.0 MB free: a checkpoint is written before" in told["text"]
        return told

    def digest(self) -> str:
        """Of all that the last checkpoint holds."""
        path = checkpoint_paths(self.record.checkpoint_dir)[-1]
        state = load_checkpoint(path).state
        del state["generation"]
        return digest_of(state)


def kill_a_rank() -> None:
    """With SIGKILL; of procs of this program."""
    (zygote,) = (one for one in psutil.Process().children() if one.children())
    os.kill(zygote.children()[0].pid, signal.SIGKILL)


def digest_of(value: Any) -> str:
    """Of tensors and numbers, in lists and dictionaries."""
    found = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            buffer = io.BytesIO()
            torch.save(one.contiguous().cpu().numpy().tobytes(), buffer)
            found.update(buffer.getvalue())
        elif isinstance(one, dict):
            for key in sorted(one, key=str):
                found.update(str(key).encode())
                add(one[key])
        elif isinstance(one, list | tuple):
            for each in one:
                add(each)
        else:
            found.update(repr(one).encode())

    add(value)
    return found.hexdigest()


@contextlib.contextmanager
def project(parent: Path, task: str) -> Iterator[Path]:
    """A folder with ``task.py``, whose modules can be imported here."""
    made = parent / "project"
    made.mkdir()
    (made / "task.py").write_text(task)
    undo = importable(made)
    try:
        yield made
    finally:
        undo()


def importable(root: Path) -> Any:
    """Have the modules of a folder importable here; what is returned undoes it."""
    before = set(sys.modules)
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()

    def undo() -> None:
        sys.path.remove(str(root))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
                del sys.modules[name]
        sys.path_importer_cache.pop(str(root), None)
        importlib.invalidate_caches()

    return undo
