"""What ``monarch status`` and ``apply`` print of the hosts."""

from __future__ import annotations

import pytest

from monarch.cli.allocation.host_table import in_short, show_hosts, usage
from monarch.runtime.answers import Response
from monarch.wire.message import HostState, ProcState


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["adder 0"], "adder 0"),
        ([f"adder {rank}" for rank in (2, 0, 1)], "adder 0-2"),
        (["adder 0", "adder 1", "adder 3", "loader 5"], "adder 0-1, 3, loader 5"),
        (["no rank", "adder 7", "7"], "no rank, adder 7, 7"),
    ],
)
def test_ranks_in_a_row_are_a_range(names: list[str], short: str) -> None:
    assert in_short(names) == short


@pytest.mark.parametrize(
    ("users", "lines"),
    [
        ({}, []),
        ({"a": ""}, ["1 host, free"]),
        ({"a": "", "b": ""}, ["2 hosts, free"]),
        ({"a": "x", "b": "x"}, ["2 hosts, used by x"]),
        ({"a": "x", "b": "", "c": "x"}, ["used by x: a, c", "free: b"]),
    ],
)
def test_who_uses_the_hosts_is_a_sentence(users: dict[str, str], lines: list[str]) -> None:
    assert usage(users) == lines


def test_the_table_of_a_busy_allocation_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    client = "train.py (pid 1234567, user somebody.with.a.name)"
    found: dict[str, Response[HostState]] = {}
    for number in range(2):
        labels = [f"trainer {8 * number + place}" for place in range(8)]
        state = HostState(
            host=f"trainers{number}",
            pid=1000 + number,
            machine="",
            uid="",
            generation=12,
            client=client,
            procs=tuple(ProcState("", label, "trainer", "", 0, 1, True) for label in labels),
        )
        found[f"tcp://10.0.0.{number}:26600"] = Response(state)
    found["tcp://10.0.0.9:26600"] = Response(None, "no answer within 5 s [gone?]")
    show_hosts(found, {})
    assert capsys.readouterr().out.splitlines() == [
        "host                  pid   generation  procs",
        "trainers0             1000  12          trainer 0-7",
        "trainers1             1001  12          trainer 8-15",
        "tcp://10.0.0.9:26600  -     -           no answer within 5 s [gone?]",
        f"2 hosts, used by {client}",
    ]
