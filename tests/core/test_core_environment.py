"""Environment variables across ranks, without processes."""

from __future__ import annotations

import pytest

from monarch.core.environment import (
    counts_when,
    hidden,
    is_secret,
    lines_of,
    matches,
    rows_of,
)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PGPASSWORD", "DB_PASSWD", "SSH_KEYS"],
)
def test_what_looks_like_a_secret_is_hidden_and_can_be_compared(name: str) -> None:
    shown = hidden(name, "open sesame", "salt")
    assert shown.startswith("(hidden, ")
    assert "sesame" not in shown
    assert shown == hidden(name, "open sesame", "salt")
    assert shown != hidden(name, "open barley", "salt")
    assert shown != hidden(name, "open sesame", "other salt")


def test_what_does_not_is_shown() -> None:
    assert hidden("NCCL_DEBUG", "INFO", "s") == "INFO"
    assert not is_secret("KEYBOARD", "us")
    assert not is_secret("PWD", "/home/me")
    assert not is_secret("PATH", "/bin")
    assert is_secret("DATABASE_URL", "postgres://me:pw@host/db")
    assert not is_secret("PROXY", "http://host:8080/")


def test_patterns() -> None:
    assert matches("NCCL_DEBUG", ["NCCL_*"])
    assert matches("X", [])
    assert not matches("nccl_debug", ["NCCL_*"])


def test_rows_have_the_ranks_of_each_value_and_mark_the_odd_one() -> None:
    env = {rank: {"NCCL_SOCKET_IFNAME": "eth0"} for rank in range(8)}
    env[7] = {"NCCL_SOCKET_IFNAME": "ib0"}
    assert lines_of(rows_of(env, ["MISSING"]), {"MISSING": "set by anna 12:03"}) == [
        "MISSING              (not set)   ranks 0-7    (set by anna 12:03)",
        "NCCL_SOCKET_IFNAME   eth0        ranks 0-6",
        "                     ib0         rank 7    <- odd one out",
    ]


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("CUDA_VISIBLE_DEVICES", "new procs only"),
        ("OMP_NUM_THREADS", "new procs only"),
        ("LD_LIBRARY_PATH", "new procs only"),
        ("NCCL_DEBUG", "next communicator"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "next communicator"),
        ("MY_FLAG", "from now on"),
    ],
)
def test_when_a_value_counts(name: str, when: str) -> None:
    assert when in counts_when(name)
