"""Edits of `forward` that leave parameters out, use them twice, freeze or replace them: ranks stay
equal, and learn what plain DDP with `find_unused_parameters` learns, bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

SCRIPT = Path(__file__).with_name("gradients_rank.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found in the scenarios."""
    folder = tmp_path_factory.mktemp("gradients")
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_ranks_learn_what_plain_ddp_learns(ranks: list[dict[str, Any]]) -> None:
    compared = [name for name, found in ranks[0].items() if "plain" in found]
    assert len(compared) == 22
    for name in compared:
        digests = {rank[name][way]["digest"] for rank in ranks for way in ("ours", "plain")}
        assert len(digests) == 1, name


def test_ranks_stay_equal_where_plain_ddp_gives_up(ranks: list[dict[str, Any]]) -> None:
    for name in ("set free on one rank", "nothing that DDP knows"):
        assert ranks[0][name]["digest"] == ranks[1][name]["digest"], name


def test_what_no_rank_uses_is_named(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        unused = rank["left out, adamw"]["ours"]["unused"]
        assert [len(names) for names in unused] == [0, 0, 0, 6, 6, 6, 0, 0]
        assert unused[3][0] == "blocks.1.down.bias"
        assert not any(rank["left out on one rank, adamw"]["ours"]["unused"])


def test_a_parameter_that_was_replaced_is_refused_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    assert "another rank" in ranks[0]["replaced"]
    assert "blocks.1.up.weight is now another object" in ranks[1]["replaced"]


def test_all_ranks_take_the_state_of_one(ranks: list[dict[str, Any]]) -> None:
    (before_0, after_0), (before_1, after_1) = (rank["taken"] for rank in ranks)
    assert before_0 != before_1
    assert after_0 == after_1 == before_1
