"""TorchTitan's trainer on two procs: parallelism, resume, reload, and what must be refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests.recipes.titan_support  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What titan_scenarios.py reports."""
    folder = tmp_path_factory.mktemp("titan")
    script = Path(__file__).with_name("titan_scenarios.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    for name, report in found.items():
        assert "traceback" not in report, f"{name}:\n{report['traceback']}"
    return found


def test_fsdp_trains_and_ranks_agree(found: dict[str, Any]) -> None:
    straight = found["straight"]
    assert straight["setup"] == [0, 237888, "FSDP 2"]
    assert straight["digests"][0] == straight["digests"][1]
    assert all(6.0 < loss < 8.0 for loss in straight["losses"])


def test_a_resumed_training_is_the_same_to_the_last_bit(found: dict[str, Any]) -> None:
    straight, resumed = found["straight"], found["resumed"]
    assert resumed["setup"][0] == 2
    assert resumed["setup"][1].endswith("fsdp/checkpoints/titan/step-2")
    assert resumed["losses"] == straight["losses"][2:]
    assert resumed["digests"] == straight["digests"]


@pytest.mark.parametrize(("name", "layout"), [("tp", "tensor"), ("ddp", "DDP"), ("pp", "pipeline")])
def test_other_parallelism_goes_on_in_the_same_processes(
    found: dict[str, Any], name: str, layout: str
) -> None:
    report, straight = found[name], found["straight"]
    # The parameters of a pipeline's stages are counted together.
    assert report["setup"] == [2, 237888, f"{layout} 2"]
    assert len(set(report["digests"])) == (0 if name == "pp" else 1)
    assert sorted(pid for pid, _ in report["process"]) == sorted(
        pid for pid, _ in straight["process"]
    )
    if name == "ddp":  # two data-parallel ranks as before, so the data goes on too
        assert report["losses"][0] == pytest.approx(straight["losses"][2], abs=1e-5)
        assert report["notes"] == []
    else:
        [note] = report["notes"]
        assert "saved by 2 data-parallel ranks, here there are 1" in note


def test_pipeline_and_tensor_parallelism_compute_the_same(found: dict[str, Any]) -> None:
    assert found["pp"]["losses"][0] == pytest.approx(found["tp"]["losses"][0], abs=1e-4)


def test_the_learning_rate_changes_while_it_trains(found: dict[str, Any]) -> None:
    live = found["live"]
    assert live["before"] == 0.01
    # Half of the new one's cosine after one of ten steps.
    assert live["after"] == pytest.approx(0.005 * 0.97553, abs=1e-5)


def test_garbage_is_collected_again_after_a_training(found: dict[str, Any]) -> None:
    assert [enabled for _, enabled in found["straight"]["process"]] == [False, False]
    assert [enabled for _, enabled in found["live"]["process"]] == [True, True]


def test_an_edit_changes_loss_model_and_schedule_between_two_steps(found: dict[str, Any]) -> None:
    report = found["reload"]
    losses = [step["loss"] for step in report["before"]]
    assert losses[:3] == found["straight"]["losses"][:3]
    # Weights and optimizer are kept: this is step 4 of the straight run, times three.
    assert report["loss"]["step"] == 4
    assert report["loss"]["loss"] == pytest.approx(3 * found["straight"]["losses"][3], rel=0.01)
    assert report["model"]["loss"] == pytest.approx(3 * 6.931472, abs=1e-4)  # 3 log 1024
    assert report["schedule"][1]["rate"] == pytest.approx(0.01 / 8)
    generations = [report[key]["generations"] for key in ("loss", "model")]
    assert generations == [[2], [3]]  # on both ranks


def test_a_run_stops_saves_and_goes_on(found: dict[str, Any]) -> None:
    run = found["run"]
    assert run["first"]["step"] == 15
    assert run["first"]["checkpoint"].endswith("step-15")
    assert run["last"]["step"] == 30
    events = run["last"]["events"]
    assert [event["step"] for event in events if event["kind"] == "resumed"] == [15]
    assert [event["step"] for event in events if event["kind"] == "saved"] == [10, 15, 20, 30]


def test_a_run_learns(found: dict[str, Any]) -> None:
    metrics = found["run"]["last"]["metrics"]
    steps = {row["step"]: row for row in metrics}
    assert sorted(steps) == list(range(1, 31))
    valid = {
        step: row["validation_loss"] for step, row in steps.items() if "validation_loss" in row
    }
    assert sorted(valid) == [1, 15, 30]
    assert valid[1] > 7.0
    assert valid[30] < 6.2
    for name in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "memory_gib"):
        assert steps[30][name] > 0
    assert "mfu_percent" not in steps[30]  # of a CPU nobody knows


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(found: dict[str, Any]) -> None:
    nan = found["failures"]["nan"]
    assert "is nan" in nan["told"]
    assert "optimizer.lr" in nan["told"]
    assert nan["checkpoints"] == []
    [unsaved] = [event for event in nan["events"] if event["kind"] == "unsaved"]
    assert "the weights are not finite" in unsaved["text"]
    assert nan["num_left"] == 0


def test_a_killed_rank_is_replaced_and_the_end_is_the_same(found: dict[str, Any]) -> None:
    run, straight = found["death"]["run"], found["straight"]
    assert (run["step"], run["num_restarts"]) == (4, 1)
    assert run["loss"] == straight["losses"][3]
    events = {event["kind"]: event for event in run["events"]}
    assert events["died"]["text"].startswith("rank 1 died: it was killed by SIGKILL")
    assert events["resumed"]["step"] == 2
    assert events["respawned"]["seconds"] > 0
    assert events["respawned"]["step"] == 3
    assert [row["step"] for row in run["metrics"]] == [1, 2, 3, 3, 4]


def test_kills_at_random_moments_change_nothing(found: dict[str, Any]) -> None:
    harmed, unharmed = found["kills"]["harmed"], found["kills"]["unharmed"]
    assert harmed["num_restarts"] >= 2
    assert harmed["step"] == 24
    losses = {row["step"]: row["loss"] for row in unharmed["metrics"]}
    assert {row["step"] for row in harmed["metrics"]} == {*losses}
    for row in harmed["metrics"]:  # also of the steps that were done twice
        assert row["loss"] == losses[row["step"]]
    assert "skipped" not in [event["kind"] for event in harmed["events"]]


def test_a_rank_that_dies_again_and_again_uses_up_the_restarts(found: dict[str, Any]) -> None:
    doomed = found["trouble"]["doomed"]
    assert "killed by SIGKILL" in doomed["told"]
    assert "giving up after 1 restarts" in doomed["told"]
    assert doomed["num_left"] == 0


def test_a_rank_that_hangs_is_named_with_every_stack_and_replaced(found: dict[str, Any]) -> None:
    run = found["trouble"]["hang"]
    assert (run["step"], run["num_restarts"]) == (5, 1)
    events = {event["kind"]: event for event in run["events"]}
    told = events["hung"]["text"]
    assert re.match(r"step 3 has not ended within \d+ s: rank 1 hangs, and the others wait", told)
    assert "hang_here" in told.partition("rank 1 hangs\n")[2]
    assert "train_step" in told.partition("rank 0 waits\n")[2].partition("rank 1 hangs\n")[0]
    assert events["resumed"]["step"] == 2


def test_data_that_raises_on_one_rank_stops_all_and_is_named(found: dict[str, Any]) -> None:
    run = found["trouble"]["data"]
    assert re.match(
        r"RuntimeError: rank 1, step 4: sample \d+ of its share of troubled raised OSError: "
        "the shard is gone",
        run["told"],
    )
    assert run["num_left"] == 0
    assert "died" not in [event["kind"] for event in run["events"]]


def test_a_full_disk_leaves_the_last_good_checkpoint(found: dict[str, Any]) -> None:
    run = found["full"]["run"]
    assert "could not save a checkpoint after step 6" in run["told"]
    assert "OSError: [Errno 27] File too large" in run["told"]
    [unsaved] = [event for event in run["events"] if event["kind"] == "unsaved"]
    assert unsaved["step"] == 4
    assert "the last good one is " in unsaved["text"]
    assert run["checkpoints"] == ["step-2"]
    assert found["full"]["found"] == 2


def test_a_run_names_the_key_that_a_rank_cannot_use(found: dict[str, Any]) -> None:
    told = found["failures"]["tokenizer"]["told"]
    assert told.startswith("'model.hf_assets_path' = ")
    assert "monarch recipe prepare titan-tiny" in told


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("other model", ["another model", "tok_embeddings.weight is (1024, 64) there and"]),
        ("all truncated", ["no checkpoint", "step-4/__1_0.distcp is truncated", "step-2/"]),
        ("no such step", ["no checkpoint of step 3; it has 2, 4"]),
        ("no tokenizer", ["no tokenizer there", "monarch recipe prepare"]),
        ("no data", ["does not exist"]),
        ("no module", ["'tiny_lama': there is no such module"]),
        ("no flavor", ["'minni' is none of tiny_llama's: mini, test"]),
        ("context", ["needs GPUs"]),
        ("profiler", ["needs a GPU"]),
        ("experts", ["needs GPUs"]),
    ],
)
def test_bad_input_is_refused(found: dict[str, Any], name: str, texts: list[str]) -> None:
    for text in texts:
        assert text in found["bad"][name]


def test_a_truncated_checkpoint_is_passed_over(found: dict[str, Any]) -> None:
    step, note = found["bad"]["one truncated"]
    assert step == 2
    assert "step-4/__1_0.distcp is truncated" in note
