"""``monarch init``: the files that a project begins with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from monarch.cli.project import (
    PROJECT_FILE,
    JobSection,
    ProjectFile,
    WorkspaceSection,
    load_project,
)
from monarch.cli.trust import note_trust
from monarch.cli.volume import say
from monarch.config_file.writer import to_commented_toml
from monarch.errors import JobError
from monarch.runs.writing import writing
from monarch.whole_file import OF_PEOPLE, write_whole

_HOSTS = 2

_TASK = '''"""What to train. Edit it while a run goes on, and save: all ranks take it up between
two steps. `monarch recipe show ddp` tells of the other functions that may stand here."""

import torch
from torch import nn
from torch.nn import functional

NUM_HIDDEN = 128
DROPOUT = 0.2


def build_model(config) -> nn.Module:
    """Images (N, 1, 8, 8) of handwritten digits to logits (N, 10)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, NUM_HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(NUM_HIDDEN, 10),
    )


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss of a batch."""
    return functional.cross_entropy(logits, labels)
'''

_OTHER_KINDS = (
    "# Hosts of other kinds (ssh, slurm, ...) have keys of their own:\n# docs/allocations.md"
)

_CONFIG = """# The config of a run: monarch run ddp --config ddp.toml
# `monarch recipe show ddp --toml` prints all keys, with what they mean.
task = "task"  # the module with your model and loss: task.py
num_epochs = 200

# May be edited while the run goes on, like the code.
learning_rate = 0.004
"""


def init(folder: Path | None, hosts: int | None) -> None:
    """Write the files of a new project into ``folder`` (None: here).

    Raises ``JobError``, and writes nothing, where one of them is there already.
    """
    folder = folder or Path()
    names = (PROJECT_FILE, "task.py", "ddp.toml")
    there = [str(folder / name) for name in names if (folder / name).exists()]
    if there:
        raise JobError(f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already")
    if hosts is None and sys.stdin.isatty() and sys.stdout.isatty():
        hosts = click.prompt(
            "How many hosts? All are on this machine, each with a copy of this folder",
            default=_HOSTS, type=click.IntRange(min=1),
        )  # fmt: skip
    texts = (_project_text(hosts or _HOSTS), _TASK, _CONFIG)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in zip(names, texts, strict=True):
            write_whole(folder / name, text, mode=OF_PEOPLE)
    note_trust(load_project(str(folder / PROJECT_FILE)))
    say(f"wrote {folder / PROJECT_FILE}: the hosts, and what they get a copy of")
    say(f"wrote {folder / 'task.py'}: your model and loss")
    say(f"wrote {folder / 'ddp.toml'}: the config of a run")
    say("\nNow:")
    if folder != Path():
        say(f"    cd {folder}")
    say("    monarch dev ddp --config ddp.toml    # hosts, a watch and a run together")
    say("then edit task.py while it trains, and save")


def _project_text(num_hosts: int) -> str:
    job = JobSection(hosts={"hosts": num_hosts}, preload=["torch"])
    workspace = WorkspaceSection(ignore=["runs/"])
    # Other kinds of hosts have tables of their own, which these have no use for.
    text = to_commented_toml(ProjectFile(job, workspace), leave_out="job.")
    first, found, workspace_text = text.partition("\n\n# The folders")
    assert found
    workspace_text = re.sub(r"\n\n(#[^\n]*\n)*\[debug\].*", "", workspace_text, flags=re.DOTALL)
    return f"{first}\n\n{_OTHER_KINDS}{found}{workspace_text.rstrip()}\n"
