"""The training itself, in two processes over gloo, without the actor runtime."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.tools.network import free_port

# All scenarios are run by the first test that looks.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

NUM_RANKS = 2
TASKS = Path(__file__).parents[2] / "examples/tasks"
SCRIPT = Path(__file__).with_name("ddp_rank.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found in the scenarios of ddp_rank.py."""
    ports: set[str] = set()
    while len(ports) < 15:
        ports.add(str(free_port()))
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("ddp")), *ports]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TASKS), *sys.path]),
        "WORLD_SIZE": str(NUM_RANKS),
        "LOCAL_WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1",
    }
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.long
def test_resuming_in_the_middle_of_an_epoch_is_bit_identical(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["resumed_from"].endswith("step-00000014.pt")
        assert rank["after"]["steps"] == [15, 16, 17]
        assert rank["before"]["losses"] + rank["after"]["losses"] == rank["straight"]["losses"]
        assert rank["after"]["digest"] == rank["straight"]["digest"]
        assert rank["after"]["accuracy"] == rank["straight"]["accuracy"]


def test_all_ranks_hold_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    for scenario in ("straight", "after", "two_ranks", "bfloat16", "float16"):
        assert ranks[0][scenario] == ranks[1][scenario]


def test_it_learns(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["straight"]["losses"][-1] < 0.8 * ranks[0]["straight"]["losses"][0]
    for precision in ("bfloat16", "float16"):
        assert all(math.isfinite(loss) for loss in ranks[0][precision]["losses"])
        assert ranks[0][precision]["losses"] != ranks[0]["straight"]["losses"][:4]


def test_the_number_of_ranks_does_not_change_the_training(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["alone_plan"]["batch"] == {"micro_batch_size": 32, "num_micro_batches": 4}
    assert ranks[0]["one_rank"]["losses"] == pytest.approx(
        ranks[0]["two_ranks"]["losses"], rel=1e-4
    )


def test_a_run_of_two_ranks_is_resumed_by_one(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["fewer_first_step"] == 14
    assert ranks[0]["fewer"]["steps"] == [15]


def test_every_rank_reports_a_checkpoint_that_is_not_there(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["missing"].startswith("CheckpointError: ")
        assert "step-00000099.pt cannot be read" in rank["missing"]


def test_every_rank_reports_a_checkpoint_of_another_model(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["foreign"].startswith("CheckpointMisfit: ")
        assert "is of another model: '0.weight' has the shape (8, 1, 3, 3) there" in rank["foreign"]
        assert "begin anew" in rank["foreign"]


def test_a_run_begins_with_the_weights_of_another_at_step_0(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["tuned"] == {"first_step": 0, "is_equal": True, "num_states": 0}


def test_extra_state_is_saved_and_put_back(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["averaged"] == ranks[1]["averaged"]
    for rank in ranks:
        assert rank["averaged_again"] == [*rank["averaged"], []]


def test_a_checkpoint_without_extra_state_has_it_begin_on_its_weights(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        skipped, first_step, is_equal = rank["averaged_anew"]
        assert skipped == ["the checkpoint has no 'ema': it begins as new"]
        assert (first_step, is_equal) == (14, True)
