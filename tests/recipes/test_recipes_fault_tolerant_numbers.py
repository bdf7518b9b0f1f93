"""What groups learn together: weighted means, a dropout of their own, statistics in common."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

import torch

from monarch.actor import this_host
from monarch.runs import Record
from monarch_recipes.checkpoint import load_checkpoint
from monarch_recipes.fault_tolerant import FaultTolerantConfig, GroupsOutcome, run
from monarch_recipes.samples import SampleOrder

pytestmark = pytest.mark.timeout(300)  # Libraries that are imported take long under load.
HERE = Path(__file__).parent

NOTING = """
import json
import os
import time

from torch import nn

from monarch_recipes import fault_tolerant

load_data = fault_tolerant.load_data


class Noting(nn.Dropout):
    def forward(self, inputs):
        if not self.training:
            return inputs
        outputs = super().forward(inputs)
        with open({path!r}, "a") as file:
            mask = (outputs != 0).int().sum(0).tolist()
            file.write(json.dumps([os.getpid(), mask]) + "\\n")
        time.sleep(0.02)
        return outputs


def build_model(config):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), Noting(0.5), nn.Linear(16, 10)
    )
"""


class Display:
    def __init__(self, stop_if: Callable[[], object]) -> None:
        self.rows: list[dict[str, float]] = []
        self.stop_if = stop_if
        self.record: Record

    def message(self, text: str) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def saved(self, step: int) -> None:
        pass

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        self.rows.append({"step": step, **values})
        if self.stop_if():
            self.record.stop()


def events_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in found if not kinds or event["kind"] in kinds]


def train(
    folder: Path, stop_if: Callable[[], object] = lambda: False, **settings: Any
) -> tuple[GroupsOutcome, Display, list[dict[str, Any]]]:
    display = Display(stop_if)
    # On a machine under load a group may stay out for long without having died.
    patient = {"hang_timeout_seconds": 30.0, "max_restarts": 20}
    config = FaultTolerantConfig(**{**patient, **settings})
    display.record = Record(folder, display, procs_per_host=4)
    outcome = run(config, this_host(), display.record)
    return outcome, display, events_of(folder)


@pytest.mark.long
def test_masked_labels_weigh_the_same_in_all_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    import masked_task as task

    _, display, _ = train(
        tmp_path, task="masked_task", batch_size=4, num_steps=3, learning_rate=0.0, clip_norm=None,
        heartbeat_timeout_seconds=60.0,
    )  # fmt: skip
    rows = [row for row in display.rows if "grad_norm" in row]
    assert [(row["step"], row["participants"]) for row in rows] == [(1, 2), (2, 2), (3, 2)]
    texts = task.Texts(96)
    order = SampleOrder(len(texts), 8, 0, 1, seed=FaultTolerantConfig.data_seed)
    torch.manual_seed(FaultTolerantConfig.seed)
    model = task.build_model(None)
    for step, row in enumerate(rows):
        model.zero_grad()
        indices = order.of(step)
        total, weight = task.compute_loss(model(texts.letters[indices]), texts.labels[indices])
        (total / weight).backward()
        norm = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()
        assert row["loss"] == pytest.approx(float(total.detach() / weight), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert "letters_right" in row
        assert "accuracy" not in row


@pytest.mark.long
def test_groups_draw_their_own_dropout_and_share_the_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, notes = tmp_path / "tasks", tmp_path / "notes"
    tasks.mkdir()
    (tasks / "noting.py").write_text(textwrap.dedent(NOTING).replace("{path!r}", repr(str(notes))))
    monkeypatch.syspath_prepend(str(tasks))
    folder = tmp_path / "run"
    # However long the way back is, the other group does not finish before.
    outcome, _, events = train(
        folder, lambda: events_of(folder, "healed"),
        task="noting", num_steps=100_000, fingerprint_every=7, chaos="kill@8 group=1",
    )  # fmt: skip
    assert len(outcome.fingerprints) == 2
    assert len(set(outcome.fingerprints.values())) == 1
    assert not [event for event in events if event["kind"] == "fingerprint"]
    assert [event for event in events if event["kind"] == "healed"], "it was to come back"
    statistics = load_checkpoint(outcome.checkpoint).state["model"]
    assert float(statistics["2.running_mean"].abs().sum()) > 0

    masks: dict[int, list[Any]] = defaultdict(list)
    for line in notes.read_text().splitlines():
        pid, mask = json.loads(line)
        masks[pid].append(mask)
    started = [event for event in events if event["kind"] in ("started", "respawned")]
    first, second = (next(e["pids"][0] for e in started if e["group"] == group) for group in (0, 1))
    assert all(mask != other for mask, other in zip(masks[first], masks[second], strict=False))


def test_a_place_has_its_own_random_numbers() -> None:
    from monarch_recipes.randomness import draw_from

    def drawn(*place: int) -> list[float]:
        draw_from(*place)
        return torch.rand(3).tolist()  # type: ignore[no-any-return]

    assert drawn(0, 1, 0, 5) == drawn(0, 1, 0, 5)
    places = [(0, group, rank, step) for group in (0, 1) for rank in (0, 1) for step in (5, 6)]
    assert len({tuple(drawn(*place)) for place in places}) == len(places)
