"""``monarch run train.py``: a script that torchrun would run, as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Folder
from tests.cli.runs_folder import RunsFolder
from tests.support import wait_for

SCRIPT = """
import argparse, os, signal

NAMES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR TORCHELASTIC_RUN_ID"


def main():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the main thread
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--fail", type=int, default=-1)
    args = parser.parse_args()
    print("lr", args.lr, *[os.environ[name] for name in NAMES.split()])
    if int(os.environ["RANK"]) == args.fail:
        raise ValueError("bad rate")


if __name__ == "__main__":
    main()
"""

LOOP = """
import os, time
import monarch
from amounts import amount


def train_step(step):
    return amount() + step * 0


def main():
    total = 0
    for step in range(400):
        total += monarch.step(train_step, step)
        if os.path.exists(os.environ["STOP_FILE"]):
            break
        time.sleep(0.02)
    print("total", total)


if __name__ == "__main__":
    main()
"""

# A program at its top level, as many are.
FLAT = """
import dataclasses, os, time
import torch
import monarch
from amounts import amount


@dataclasses.dataclass
class Arguments:
    rate: float = 0.1


print("begun with", dataclasses.fields(Arguments)[0].type, torch.get_num_threads(), flush=True)
while not os.path.exists(os.environ["STOP_FILE"]):
    loss = amount()
    monarch.step(loss=loss)
    time.sleep(0.02)
print("ended at", loss, flush=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> RunsFolder:
    made = RunsFolder(tmp_path)
    made.write("train.py", SCRIPT)
    return made


def test_a_plain_script_has_torchruns_environment_and_its_own_flags(here: RunsFolder) -> None:
    here.monarch("run", "train.py", "--procs", "2", "--", "--lr", "0.5")
    (run,) = here.runs
    for rank in range(2):
        said = (run / f"logs/rank{rank}.log").read_text().split()
        assert said[:7] == ["lr", "0.5", str(rank), "2", str(rank), "2", "0"]
        assert said[-1] == run.name
    assert (run / "command").read_text() == "monarch run train.py --procs 2 -- --lr 0.5\n"


def test_a_rank_that_fails_is_two_lines_and_the_status_is_1(here: RunsFolder) -> None:
    said = here.monarch("run", "train.py", "--procs", "2", "--", "--fail", "1", status=1)
    end = said[said.index("monarch: ") :].splitlines()
    assert end == [
        "monarch: train.py failed: ValueError: bad rate",
        "train.py:14, on rank 1",
        "to begin again: monarch run train.py --procs 2 -- --fail 1",
        f"the whole traceback: runs/{here.runs[0].name}/traceback.txt, or --traceback",
        f"all about it is in runs/{here.runs[0].name}",
    ]
    kept = (here.runs[0] / "traceback.txt").read_text()
    assert kept.endswith("ValueError: bad rate\n")


def test_flags_of_the_script_before_the_dashes_are_told_where_to_go(
    here: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(click.NoSuchOption, match=r"monarch run train\.py -- --lr"):
        here.here(monkeypatch, "run", "train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--nproc-per-node=2", "is `--procs` here"),
        ("--nproc_per_node", "is `--procs` here"),
        ("--nnodes", "`hosts` in monarch.toml"),
        ("--rdzv-backend", "is not needed"),
    ],
)
def test_flags_of_torchrun_are_told_by_their_names_here(
    flag: str, said: str, here: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(click.UsageError, match=re.escape(said)):
        here.here(monkeypatch, "run", "train.py", flag, "2")


def test_a_script_that_only_exits_has_no_traceback_to_look_for(here: RunsFolder) -> None:
    said = here.monarch("run", "train.py", "--", "--lr", "fast", status=1)
    assert "monarch: train.py failed: exited with status 2" in said
    assert "invalid float value: 'fast'" in said
    assert "traceback" not in said


@pytest.mark.long
def test_an_edit_comes_in_between_two_steps_and_a_failing_one_is_made_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    stop = folder.path / "stop"
    monkeypatch.setenv("STOP_FILE", str(stop))
    folder.write("train.py", LOOP)
    folder.write("amounts.py", "def amount():\n    return 1\n")
    folder.monarch("apply")
    run = command("run", "train.py", "--on-edit-error", "hold")  # type: ignore[operator]
    events = folder.path / "runs/latest/events.jsonl"

    def kinds() -> list[str]:
        rows = events.read_text().splitlines() if events.exists() else []
        return [json.loads(row)["kind"] for row in rows]

    wait_for(lambda: "first_step" in kinds())
    folder.write("amounts.py", "def amount():\n    return gone\n")
    folder.monarch("sync")
    wait_for(lambda: "held" in kinds())
    folder.write("amounts.py", "def amount():\n    return 1000\n")
    folder.monarch("sync")
    wait_for(lambda: "mended" in kinds())
    assert "begun_again" not in kinds(), "in the same processes"
    wait_for(lambda: "generation" in kinds())
    rows = (folder.path / "runs/latest/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["loss"] == 1.0, "what its step returned"
    stop.write_text("")
    assert run.wait() == 0
    said = (folder.path / "runs/latest/logs/rank0.log").read_text()
    total = int(said.split("total ")[1].split()[0])
    assert total > 1000
    assert total % 1000 > 0, "the steps before the edit counted"


@pytest.mark.long
def test_a_program_without_a_main_function_begins_once_in_each_process(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    """Where it has failed, its process still stands when the fix comes: that runs no loop there."""
    stop = folder.path / "stop"
    monkeypatch.setenv("STOP_FILE", str(stop))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    folder.write("train.py", FLAT)
    folder.write("amounts.py", "def amount():\n    return 1\n")
    folder.monarch("apply")
    run = command("run", "train.py", "--on-edit-error", "hold")  # type: ignore[operator]
    events = folder.path / "runs/latest/events.jsonl"

    def kinds() -> list[str]:
        rows = events.read_text().splitlines() if events.exists() else []
        return [json.loads(row)["kind"] for row in rows]

    wait_for(lambda: "first_step" in kinds())
    folder.write("train.py", FLAT.replace("sleep(0.02)", "sleep(0.03)"))
    assert "train.py:13: `while not os.path.exists" in folder.monarch("sync")
    folder.write("amounts.py", "def amount():\n    return gone\n")
    folder.monarch("sync")
    wait_for(lambda: "held" in kinds())
    folder.write("amounts.py", "def amount():\n    return 1000\n")
    folder.monarch("sync")
    wait_for(lambda: kinds().count("begun_again") == 1)
    wait_for(lambda: "mended" in kinds())
    stop.write_text("")
    assert run.wait() == 0
    for rank in range(2):
        said = (folder.path / f"runs/latest/logs/rank{rank}.log").read_text()
        assert said.count("begun with <class 'float'> 1") == 2, "values, and a thread a rank"
        assert "ended at 1000" in said
