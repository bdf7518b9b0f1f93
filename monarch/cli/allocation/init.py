"""``monarch init``: writes the files with which a project begins."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from monarch.cli.allocation.found_code import LOGS, WEIGHTS, look_at
from monarch.cli.project import (
    PROJECT_FILE,
    JobSection,
    ProjectFile,
    WorkspaceSection,
    load_project,
)
from monarch.cli.terminal.confirm import is_somebody_there
from monarch.cli.terminal.volume import say
from monarch.cli.trust import note_trust
from monarch.config_file.writer import to_commented_toml
from monarch.runs.record.writing import writing
from monarch.whole_file import OF_PEOPLE, write_whole

_HOSTS = 2
TASK = "task.py"
_CONFIG_FILE = "ddp.toml"
_MEANINGS = {
    PROJECT_FILE: "the hosts, and what they get a copy of",
    TASK: "your model and loss",
    _CONFIG_FILE: "the config of a run",
}

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
    """Write into ``folder`` (None: here) what a project lacks, and say what to do with its own
    code.

    Existing files stay unchanged. A project with a training script of its own gets no example task.
    """
    folder = folder or Path()
    code = look_at(folder)
    names = [PROJECT_FILE] if code.scripts else [PROJECT_FILE, TASK, _CONFIG_FILE]
    missing = [name for name in names if not os.path.lexists(folder / name)]
    is_asked = PROJECT_FILE in missing and hosts is None
    if is_asked and is_somebody_there():
        question = "How many hosts? All are on this machine, each with a copy of this folder"
        hosts = click.prompt(question, default=_HOSTS, type=click.IntRange(min=1))
    project = _project_text(hosts or _HOSTS, code.outputs)
    texts = {PROJECT_FILE: project, TASK: _TASK, _CONFIG_FILE: _CONFIG}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in missing:
            write_whole(folder / name, texts[name], mode=OF_PEOPLE)
    if PROJECT_FILE in missing:  # Else it is somebody's, who may be a stranger.
        note_trust(load_project(str(folder / PROJECT_FILE)))
    for name in names:
        verb = "wrote" if name in missing else "kept"
        say(f"{verb} {folder / name}: {_MEANINGS[name]}")
    if hosts is not None and PROJECT_FILE not in missing:
        say(f"--hosts: {PROJECT_FILE} says how many there are; edit `hosts` there")
    if TASK in names and TASK not in missing and not _is_task(folder / TASK):
        say(
            f"{TASK} has no `build_model` and `compute_loss`: `monarch recipe show ddp` says what "
            f"`task` in {_CONFIG_FILE} has to name"
        )
    advice = list(code.lines())
    if advice:
        say("\nFound:")
    for line in advice:
        say(f"    {line}")
    say("\nNow:")
    if folder != Path():
        say(f"    cd {folder}")
    to_run = next((script for script in code.scripts if script.kind != "ray"), None)
    if to_run is not None:
        say(f"    monarch dev {to_run.name}    # hosts, a watch and a run together")
        say("one call of `monarch.step()` in its loop lets your edits in while it trains")
    elif not code.scripts:
        say("    monarch dev ddp --config ddp.toml    # hosts, a watch and a run together")
        say("then edit task.py while it trains, and save")
    else:
        say("    monarch apply    # brings the hosts up")


def _is_task(path: Path) -> bool:
    """Whether a file defines ``build_model`` and ``compute_loss``; False if it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    defined = {getattr(statement, "name", "") for statement in tree.body}
    return {"build_model", "compute_loss"} <= defined


def _project_text(num_hosts: int, outputs: Sequence[str]) -> str:
    job = JobSection(hosts={"hosts": num_hosts}, preload=["torch"])
    folders = dict.fromkeys(["runs", *LOGS, *outputs])
    patterns = [*(f"{name}/" for name in folders), *(f"*{kind}" for kind in WEIGHTS)]
    workspace = WorkspaceSection(ignore=patterns)
    # Other kinds of hosts have tables of their own, which process hosts do not need.
    text = to_commented_toml(ProjectFile(job, workspace), leave_out="job.")
    first, separator, workspace_text = text.partition("\n\n# The folders")
    assert separator
    workspace_text = re.sub(r"\n\n(#[^\n]*\n)*\[debug\].*", "", workspace_text, flags=re.DOTALL)
    workspace_text = re.sub(r"(?m)^ignore = \[(.*)\]$", _folded, workspace_text)
    return f"{first}\n\n{_OTHER_KINDS}{separator}{workspace_text.rstrip()}\n"


def _folded(ignore: re.Match[str]) -> str:
    lines = textwrap.wrap(f"{ignore[1]},", 76, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["ignore = [", *lines, "]"])
