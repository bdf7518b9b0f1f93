"""Tasks of the user's own, as the examples have them: a language model, an autoencoder."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

import torch
from click.testing import CliRunner

from monarch.actor import this_host
from monarch.cli.main import cli
from monarch.config_file import ConfigError, load_config
from monarch.errors import JobError
from monarch.runs import Record
from monarch_recipes.best import EvaluationVerdict, judge
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint, save_checkpoint
from monarch_recipes.ddp import DDPConfig, plan, run
from monarch_recipes.export import export
from monarch_recipes.extras import Extras
from monarch_recipes.optimizer import set_rates
from monarch_recipes.samples import ReadingAhead, SampleError, SampleOrder, batches

TASKS = Path(__file__).parents[2] / "examples" / "tasks"
CPU = torch.device("cpu")


class Display:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)

    def phase(self, text: str) -> None:
        pass

    def saved(self, step: int) -> None:
        pass

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        pass


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TASKS))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_language_model_of_bytes_learns(tmp_path: Path) -> None:
    config = load_config(
        DDPConfig, TASKS / "letters.toml",
        ["num_epochs=2", "extras.profile_step=2", "extras.profile_num_steps=1"],
    ).config  # fmt: skip
    outcome = run(config, this_host(), Record(tmp_path, Display(), procs_per_host=2))
    assert outcome.held_out is not None
    assert set(outcome.held_out) == {"loss", "bits_per_byte"}
    first = next(row for row in rows_of(tmp_path) if "bits_per_byte" in row)
    assert first["bits_per_byte"] > 7, "it begins with guesses"
    # Letters alone, without what is before them, are worth 4.5 bits.
    assert outcome.held_out["bits_per_byte"] < 4.2
    assert not [row for row in rows_of(tmp_path) if "accuracy" in row]
    best = checkpoint_paths(tmp_path / "checkpoints" / "best")
    assert [load_checkpoint(path).step for path in best] == [outcome.step]
    assert [event["kind"] for event in events_of(tmp_path)].count("best") >= 2
    for rank in (0, 1):
        assert json.loads((tmp_path / "profile" / f"rank{rank}.json").read_text())["traceEvents"]


@pytest.mark.timeout(240)
@pytest.mark.long
def test_an_autoencoder_is_stopped_by_its_own_rule(tmp_path: Path) -> None:
    extras = Extras(patience=1)
    config = DDPConfig(task="denoise", num_epochs=30, evaluate_every=5, extras=extras)
    display = Display()
    outcome = run(config, this_host(), Record(tmp_path, display, procs_per_host=2))
    assert outcome.held_out is not None
    assert set(outcome.held_out) == {"loss", "noise_left"}
    stopped = [event for event in events_of(tmp_path) if event["kind"] == "stopped_early"]
    assert len(stopped) == 1
    assert outcome.step == stopped[0]["step"] < 30 * 11
    assert stopped[0]["text"].startswith(("a tenth of the noise", "the held-out loss has not"))
    assert not [row for row in rows_of(tmp_path) if "accuracy" in row]
    assert "accuracy" not in " ".join(display.texts)
    assert outcome.checkpoint is not None


@pytest.mark.long
@pytest.mark.timeout(240)
def test_groups_train_them_too(tmp_path: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed")
    from monarch_recipes import fault_tolerant

    for task, measured in ("letters", "bits_per_byte"), ("denoise", "noise_left"):
        config = fault_tolerant.FaultTolerantConfig(
            task=task, num_steps=12, num_workers=1, hang_timeout_seconds=30.0
        )
        folder = tmp_path / task
        outcome = fault_tolerant.run(
            config, this_host(), Record(folder, Display(), procs_per_host=2)
        )
        assert set(outcome.held_out) == {"loss", measured}
        assert len(set(outcome.fingerprints.values())) == 1


@pytest.mark.long
@pytest.mark.parametrize("task", ["letters", "denoise"])
def test_they_can_be_planned(task: str) -> None:
    assert "MiB" in plan(DDPConfig(task=task), 1, 2)["memory of a rank"]


@pytest.fixture
def child_signals() -> Iterator[None]:
    """torch's DataLoader takes over how this process hears of children that end."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


class Squares:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        if index == 7:
            raise OSError("the shard is gone")
        return torch.rand(2), float(index)


def ahead(data: Any, *, seed: int = 1) -> ReadingAhead:
    order = SampleOrder(20, 4, 0, 1, seed=seed)
    return ReadingAhead(data, order, 2, place=(0, 0), options={"num_workers": 1})


def test_workers_read_what_the_step_would_and_draw_the_same_again(child_signals: None) -> None:
    class Whole(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
            return torch.rand(2), float(index)

    order, reading = SampleOrder(20, 4, 0, 1, seed=1), ahead(Whole())
    steps = [list(reading.of(step, CPU, "rank 0")) for step in range(7)]
    for step, found in enumerate(steps):
        assert [len(labels) for _, labels in found] == [2, 2]
        assert torch.cat([labels for _, labels in found]).tolist() == order.of(step)
    resumed = list(reading.of(5, CPU, "rank 0"))
    for (inputs, _), (before, _) in zip(resumed, steps[5], strict=True):
        assert torch.equal(inputs, before)
    assert not torch.equal(steps[5][0][0], steps[6][0][0])
    next(reading.of(6, CPU, "rank 0"))
    reading.load_state_dict(reading.state_dict())  # as where the step is made again
    (again, _), _ = reading.of(6, CPU, "rank 0")
    assert torch.equal(again, steps[6][0][0])
    reading.close()


def test_an_error_in_a_worker_is_told_in_a_line(child_signals: None) -> None:
    reading = ahead(Squares())
    steps = (list(reading.of(step, CPU, "rank 0")) for step in range(5))
    with pytest.raises(SampleError) as caught:
        list(steps)
    assert str(caught.value).startswith(
        "rank 0 could not read sample 7: OSError: the shard is gone"
    )
    assert f"({__file__}:" in str(caught.value)
    assert "\n" not in str(caught.value)
    reading.close()


def test_what_makes_no_batch_is_told_in_a_line() -> None:
    ragged = [(torch.zeros(size), 0) for size in (1, 2)]
    with pytest.raises(SampleError, match=r"^rank 0 could not make a batch of samples 0, 1: "):
        list(batches(ragged, [0, 1], 2, CPU, "rank 0"))
    with pytest.raises(SampleError, match=r"got a Tensor as a batch, not \(inputs"):
        list(batches([torch.zeros(1)], [0], 1, CPU, "rank 0"))


def test_parameter_groups_have_scales_of_their_own() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr_scale": 0.1}]
    groups[1]["weight_decay_scale"] = 0.0
    optimizer = torch.optim.AdamW(groups)
    set_rates(optimizer, 0.5, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    plain = torch.optim.Rprop(weights)
    set_rates(plain, 0.5, 0.2)
    assert "weight_decay" not in plain.param_groups[0]


def history(*losses: float) -> list[dict[str, float]]:
    return [{"loss": loss, "step": 10.0 * number} for number, loss in enumerate(losses, 1)]


def test_the_best_evaluation_and_when_to_stop() -> None:
    patient = Extras(patience=2)
    assert judge(history(3.0, 2.0), patient) == EvaluationVerdict(is_best=True)
    assert judge(history(2.0, 3.0), patient) == EvaluationVerdict(is_best=False)
    late = judge(history(2.0, 3.0, 2.5), patient)
    assert late.reason_to_stop.endswith("for 2 evaluations than 2 at step 10")
    assert not judge(history(2.0, 3.0, 2.5), Extras()).reason_to_stop
    highest = Extras(best_is="highest")
    assert judge(history(2.0, 3.0), highest).is_best
    assert not judge(history(2.0, float("nan")), patient).is_best
    assert judge(history(1.0), patient, lambda rows: len(rows) == 1).reason_to_stop
    with pytest.raises(ConfigError, match="no 'accuracy' was measured; there is loss"):
        judge(history(1.0), Extras(best_metric="accuracy"))


def test_the_weights_of_a_run_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = importlib.import_module("safetensors.torch")
    run_folder = tmp_path / "runs" / "ddp-1"
    save_checkpoint(run_folder / "checkpoints", 3, {"model": {"a": torch.ones(2)}}, 1)
    (run_folder / "command").write_text("monarch run ddp\n")
    monkeypatch.chdir(tmp_path)
    asked = ["recipe", "export", "ddp", "ddp-1"]
    said = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert said.output.startswith("wrote 1 tensors of step 3")
    assert safetensors.load_file("model.safetensors")["a"].tolist() == [1.0, 1.0]
    with pytest.raises(JobError, match=r"model\.safetensors is there already; --force"):
        CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)


def test_weights_are_exported_as_plain_tensors(tmp_path: Path) -> None:
    safetensors = importlib.import_module("safetensors.torch")
    tied = torch.arange(4.0)
    save_checkpoint(tmp_path, 3, {"model": {"a": tied, "b": tied}}, 1)
    file = tmp_path / "model.safetensors"
    assert export(tmp_path, file).startswith("2 tensors of step 3")
    read = safetensors.load_file(file)
    assert torch.equal(read["a"], tied)
    assert torch.equal(read["b"], tied)
    save_checkpoint(tmp_path / "best", 2, {"model": {"a": tied}}, 1)
    assert export(tmp_path, file).startswith("1 tensors of step 2")
