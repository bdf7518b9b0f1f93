"""What ranks of a run print, as a person sees it, and as the run's logs keep it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.runtime.output.log_printer import LogPrinter
from monarch.wire.message import Log

NAMED = "[actor=<root>.<recipe.TitanTrainer titan{'procs': %d/2}>] "


@pytest.fixture
def printer() -> Iterator[LogPrinter]:
    made = LogPrinter()
    made.is_of_run = True
    yield made
    made.close()


def log(rank: int, stream: int) -> Log:
    return Log(
        uid=f"proc{rank}", label=f"titan {rank}", stream=stream, host="host", num_dropped=0,
        path=f"/logs/titan/{rank}.log", host_name="here",
    )  # fmt: skip


def test_a_run_shows_each_thing_once_and_keeps_all_of_it(
    printer: LogPrinter, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[bytes] = []
    printer.tee = lambda log, lines: kept.append(lines)
    printed: list[bytes] = []
    for rank in range(2):
        text = NAMED % rank + "x.py:1: UserWarning: slow\n" + "block: [0], thread: [%d]\n" * 32
        printed.append((text % tuple(range(32))).encode())
        printer.print(log(rank, 2), printed[-1])
    printer.print(log(0, 1), b"after it\n")
    assert printer.flush()
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "titan | x.py:1: UserWarning: slow (on ranks 0 and 1)",
        "titan | block: [0], thread: [0]",
        "titan | 31 more like it",
    ]
    assert shown.out == "titan 0 | after it\n"
    assert kept == [*printed, b"after it\n"]


def test_what_a_rank_prints_alone_is_shown_at_once(
    printer: LogPrinter, capsys: pytest.CaptureFixture[str]
) -> None:
    printer.print(log(1, 1), b"one\ntwo\n")
    assert printer.flush()
    assert capsys.readouterr().out == "titan 1 | one\ntitan 1 | two\n"
