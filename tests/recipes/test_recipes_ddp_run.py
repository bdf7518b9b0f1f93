"""The DDP recipe on real procs: what goes wrong, and how the run goes on."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from monarch.actor import this_host
from monarch.config_file import ConfigError, load_config, to_toml
from monarch.runs import LineDisplay, LiveConfig, Record
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from monarch_recipes.ddp import DDPConfig, DDPOutcome, run
from tests.recipes.ddp_trouble import SPOILED

CONFIG = DDPConfig(
    num_channels=4, num_epochs=3, checkpoint_every=10, evaluate_every=0, device="cpu"
)
NUM_STEPS = 33
TROUBLE = dataclasses.replace(CONFIG, task="tests.recipes.ddp_trouble")


class Meddled(Record):
    """A record that does something to the run when a step is reported."""

    def __init__(self, folder: Path, meddle: Callable[[int], object] = lambda step: None) -> None:
        self.stream = io.StringIO()
        super().__init__(folder, LineDisplay(self.stream, 10_000), procs_per_host=2)
        self.meddle = meddle

    def metrics(self, step: int, num_steps: int, values: Any) -> None:
        super().metrics(step, num_steps, values)
        self.meddle(step)

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.rows("events.jsonl")]

    def event_of(self, kind: str) -> dict[str, Any]:
        return next(row for row in self.rows("events.jsonl") if row["kind"] == kind)


def ranks() -> list[psutil.Process]:
    """The procs: children of the template process, which is ours."""
    zygotes = psutil.Process().children()
    return [proc for zygote in zygotes for proc in zygote.children()]


def once(at: int, do: Callable[[], object]) -> Callable[[int], object]:
    """What is done after step ``at``, the first time."""
    left = [do]
    return lambda step: left.pop()() if left and step == at else None


def go(config: DDPConfig, record: Record) -> DDPOutcome:
    return run(config, this_host(), record)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(checkpoint_paths(folder)[-1]).state["model"]
    return model


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What a run ends with that nothing happens to."""
    record = Meddled(tmp_path_factory.mktemp("straight"))
    outcome = go(CONFIG, record)
    assert (outcome.step, outcome.num_restarts) == (NUM_STEPS, 0)
    assert [row["step"] for row in record.rows("metrics.jsonl")] == [*range(1, 34), 33]
    return weights(record.checkpoint_dir)


@pytest.mark.long
def test_a_rank_that_is_killed_is_replaced_and_the_end_is_the_same(
    straight: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    record = Meddled(tmp_path, once(17, lambda: ranks()[-1].kill()))
    outcome = go(CONFIG, record)
    assert (outcome.step, outcome.num_restarts) == (NUM_STEPS, 1)
    assert [k for k in record.kinds() if k not in ("saved", "first_step")] == [
        "died", "resumed", "respawned",
    ]  # fmt: skip
    assert "died: it was killed by SIGKILL" in record.event_of("died")["text"]
    assert record.event_of("resumed")["step"] == 10
    assert record.event_of("respawned")["seconds"] > 0
    for name, tensor in weights(record.checkpoint_dir).items():
        assert torch.equal(tensor, straight[name]), name


@pytest.mark.long
def test_a_run_that_was_to_begin_anew_goes_on_from_what_it_has_saved(tmp_path: Path) -> None:
    record = Meddled(tmp_path, once(17, lambda: ranks()[-1].kill()))
    outcome = go(dataclasses.replace(CONFIG, num_epochs=2, resume="never"), record)
    assert (outcome.step, outcome.num_restarts) == (22, 1)
    assert record.event_of("resumed")["step"] == 10


@pytest.mark.long
def test_a_run_that_is_told_to_stop_saves_and_the_next_goes_on(
    straight: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    record = Meddled(tmp_path)
    record.meddle = once(7, record.stop)
    stopped = go(CONFIG, record)
    assert (stopped.step, stopped.held_out) == (7, None)
    again = Meddled(tmp_path)
    assert go(CONFIG, again).step == NUM_STEPS
    assert again.event_of("resumed")["step"] == 7
    beyond = go(dataclasses.replace(CONFIG, num_epochs=1), Meddled(tmp_path))
    assert beyond.step == NUM_STEPS
    assert beyond.held_out is not None, "there is nothing left to train"
    for name, tensor in weights(again.checkpoint_dir).items():
        assert torch.equal(tensor, straight[name]), name


@pytest.mark.long
def test_a_truncated_checkpoint_is_told_of_and_the_one_before_is_used(tmp_path: Path) -> None:
    record = Meddled(tmp_path)
    record.meddle = once(25, record.stop)
    go(CONFIG, record)
    newest = checkpoint_paths(record.checkpoint_dir)[-1]
    os.truncate(newest, newest.stat().st_size // 2)
    again = Meddled(tmp_path)
    assert go(CONFIG, again).step == NUM_STEPS
    assert newest.name in again.event_of("skipped")["text"]
    assert again.event_of("resumed")["step"] == 20


@pytest.mark.long
def test_a_rank_that_hangs_is_named_with_every_stack_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "hang"
    monkeypatch.setenv("DDP_TROUBLE", f"hang {mark}")
    record = Meddled(tmp_path / "run", once(12, mark.touch))
    config = dataclasses.replace(TROUBLE, collective_timeout_seconds=8.0)
    outcome = go(config, record)
    assert (outcome.step, outcome.num_restarts) == (NUM_STEPS, 1)
    told = record.event_of("hung")["text"]
    # 8, or more where other steps have taken long, as on a busy machine.
    seconds, _, rest = told.removeprefix("step 13 has not ended within ").partition(" s: ")
    assert float(seconds) >= 8.0
    assert rest.startswith("rank 1 hangs")
    assert "hang_here" in told.partition("rank 1 hangs\n")[2]
    assert "backward" in told.partition("rank 0 waits\n")[2]
    assert record.event_of("resumed")["step"] == 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (
            "sample",
            rf"rank 1, in step \d+, could not read sample {SPOILED}: OSError: the shard is gone",
        ),
        (
            "nan {mark}",
            r"^the loss is nan in step 1, on rank 1; the samples of rank 1 were .* and 56 more$",
        ),
    ],
)
def test_what_a_restart_would_not_cure_ends_the_run_and_says_where(
    trouble: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    monkeypatch.setenv("DDP_TROUBLE", trouble.format(mark=mark))
    record = Meddled(tmp_path / "run")
    with pytest.raises(RunFailed, match=expected):
        go(TROUBLE, record)
    assert not ranks(), "all ranks have stopped"
    assert "died" not in record.kinds()


@pytest.mark.long
def test_a_rank_that_dies_again_and_again_uses_up_the_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDP_TROUBLE", "die")
    record = Meddled(tmp_path)
    with pytest.raises(RunFailed, match="giving up after 1 restarts") as caught:
        go(dataclasses.replace(TROUBLE, max_restarts=1), record)
    assert "killed by SIGKILL" in str(caught.value)
    assert record.kinds().count("died") == 1


@pytest.mark.long
def test_a_port_in_use_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=f"port {port} .* is in use by another program"):
            go(dataclasses.replace(CONFIG, master_port=port), Meddled(tmp_path))
    assert "Traceback" not in "".join(capfd.readouterr()), "ranks end without an error"


def test_a_checkpoint_that_is_not_here_is_told_before_anything_starts(tmp_path: Path) -> None:
    missing, record = tmp_path / "step-00000001.pt", Meddled(tmp_path / "run")
    with pytest.raises(ConfigError, match="a file that is not there"):
        go(dataclasses.replace(CONFIG, resume=str(missing)), record)
    assert not (tmp_path / "run/events.jsonl").exists()


@pytest.mark.long
def test_a_mistake_in_a_value_is_told_without_a_traceback(tmp_path: Path) -> None:
    missing = tmp_path / "another disk/step-00000001.pt"  # It may be there on the ranks' machine.
    with pytest.raises(RunFailed) as caught:
        go(dataclasses.replace(CONFIG, resume=str(missing)), Meddled(tmp_path / "run"))
    assert str(caught.value).startswith(f"{missing} cannot be read: ")
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    def fill() -> None:
        for proc in ranks():
            resource.prlimit(proc.pid, resource.RLIMIT_FSIZE, (1000, 1000))

    record = Meddled(tmp_path, once(12, fill))
    with pytest.raises(RunFailed, match=r"not save a checkpoint after step 33: .*File too"):
        go(CONFIG, record)
    assert record.kinds().count("unsaved") == 2
    assert "the last good one is" in record.event_of("unsaved")["text"]
    assert [path.name for path in checkpoint_paths(record.checkpoint_dir)] == ["step-00000010.pt"]
    assert not list(record.checkpoint_dir.glob("*.unfinished"))
    assert load_checkpoint(checkpoint_paths(record.checkpoint_dir)[0]).step == 10


def test_more_ranks_than_procs_are_refused_before_any_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="asks for 3 ranks, and there are 2 procs"):
        go(dataclasses.replace(CONFIG, num_ranks=3), Meddled(tmp_path))
    assert not ranks()


@pytest.mark.long
def test_fewer_ranks_than_procs_keep_the_global_batch(tmp_path: Path) -> None:
    record = Meddled(tmp_path)
    config = dataclasses.replace(CONFIG, num_ranks=1, num_epochs=1)
    assert go(config, record).step == 11
    assert "on 1 rank, 4 x 32 samples each a step" in record.stream.getvalue()


def test_what_may_change_live_changes_between_two_steps(tmp_path: Path) -> None:
    file = tmp_path / "ddp.toml"
    file.write_text(to_toml(CONFIG))

    def edit() -> None:
        text = to_toml(dataclasses.replace(CONFIG, learning_rate=0.5, dropout=0.0))
        unfinished = file.with_suffix(".new")
        unfinished.write_text(text)
        os.replace(unfinished, file)

    record = Meddled(tmp_path / "run", once(15, edit))
    record.config_file = LiveConfig(CONFIG, {file: lambda: load_config(DDPConfig, file).config})
    go(CONFIG, record)
    rates = {row["step"]: row.get("learning_rate") for row in record.rows("metrics.jsonl")[:-1]}
    assert rates[15] < 4e-3
    assert rates[16] > 0.1
    event = record.event_of("config")
    assert event["applied"] == {"learning_rate": [4e-3, 0.5]}
    assert event["waiting"] == {"dropout": [0.2, 0.0]}
    assert "dropout = 0.0 (was 0.2) needs a restart" in event["text"]
