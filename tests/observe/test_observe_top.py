"""What `monarch top` shows, and how it behaves, of ranks that are made up."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from monarch.view.live_view import LiveView, size_in_words
from tests.cli.on_terminal import on_terminal
from tests.support import wait_for

pytest.importorskip("textual")


def host(num_ranks: int, at: float = 0.0, odd: Sequence[int] = (), name: str = "host0") -> Any:
    """As a host tells of itself: ranks in ``step``, those in ``odd`` in ``wait``."""
    procs = [
        {
            "uid": f"p{rank}", "name": "ddp", "rank": rank, "pid": 1000 + rank, "mesh": "m",
            "is_up": True, "answers": True, "hangs": "", "now": int(at * 1e9), "rss": 10**8,
            "generation": 3, "calls": [],
            "actors": [
                {
                    "mesh": "a", "rank": rank, "name": "trainers", "class": "T",
                    "status": "running",
                    "doing": [{"method": "wait" if rank in odd else "step", "seconds": 0.2}],
                    "queue": 2, "num_ended": int(at * 10), "num_failed": 0, "waits": [],
                }
            ],
        }
        for rank in range(num_ranks)
    ]  # fmt: skip
    return {
        "url": "ipc://x", "host": name, "pid": 1, "procs": procs, "client": None, "now": 0,
        "client_state": None, "cpu_busy": at, "cpu_total": 2 * at, "num_cpus": 2, "gpus": [],
        "mem_used": 10**9, "mem_total": 4 * 10**9,
    }  # fmt: skip


def test_ranks_that_do_the_same_are_one_line_and_odd_ones_come_first() -> None:
    snapshot = LiveView().update([host(1024, odd=[7, 8])], 0.0)
    assert [(g["ranks"], g["doing"], g["is_odd"]) for g in snapshot["groups"]] == [
        ("7-8", "wait", True),
        ("0-6, 9-1023", "step", False),
    ]
    assert snapshot["num_ranks"] == 1024


def test_actors_of_one_proc_are_one_rank_and_a_program_without_procs_is_no_host() -> None:
    two = host(2)
    for proc in two["procs"]:
        proc["actors"] += [{**proc["actors"][0], "mesh": "b", "name": "witness"}]
    client = {"uid": "c1", "calls": []}
    program = {**host(0, name="laptop"), "uid": "c1", "client_state": client}
    snapshot = LiveView().update([{**two, "uid": "h1", "client_state": client}, program], 0.0)
    assert snapshot["num_ranks"] == 2
    assert [one["name"] for one in snapshot["hosts"]] == ["host0"]
    assert len(LiveView().update([program], 0.0)["hosts"]) == 1


def test_actors_of_a_runs_machinery_are_not_among_a_persons_own() -> None:
    look = host(2)
    for proc in look["procs"]:
        for name, kind in (
            ("witness", "runs.recover.witness.Witness"),
            ("trial", "runs.hold.trial.Trial"),
        ):
            ours = {"mesh": name, "name": name, "class": f"monarch.{kind}"}
            proc["actors"] += [{**proc["actors"][0], **ours}]
        mine = {"mesh": "mine", "name": "mine", "class": "trial.Trial"}
        proc["actors"] += [{**proc["actors"][0], **mine}]
    snapshot = LiveView().update([look], 0.0)
    assert {group["actor"] for group in snapshot["groups"]} == {"trainers", "mine"}


def test_rates_and_load_come_from_two_looks() -> None:
    view = LiveView()
    assert view.update([host(2, at=1.0)], 1.0)["counters"]["rate"] == 0
    counters = view.update([host(2, at=3.0)], 3.0)["counters"]
    assert counters["rate"] == pytest.approx(20.0)
    assert counters["cpu"] == pytest.approx(0.5)
    assert counters["queue"] == 4


def test_a_view_that_is_left_open_keeps_a_quarter_of_an_hour_and_no_dead_actors() -> None:
    view = LiveView()
    for second in range(1_000):
        look = host(1, at=float(second))
        look["procs"][0]["actors"][0]["mesh"] = f"short-lived {second}"
        view.update([look], float(second))
    assert len(view.history) == 900
    assert len(view._counts_before) == 1


def test_a_host_that_does_not_answer_is_a_line() -> None:
    snapshot = LiveView().update([{"url": "gone", "error": "nobody listens"}], 0.0)
    assert snapshot["hosts"] == [{"name": "gone", "error": "nobody listens"}]


HOLD = {
    "id": "h", "actor": "trainers", "rank": 1, "labels": ["gpus"], "sizes": [3], "mesh": "m",
    "proc": "p1", "host": "host0", "pid": 1001, "method": "step", "reason": "breakpoint()",
    "file": "/home/me/train.py", "function": "step", "line": 42, "since": 90.0,
}  # fmt: skip
EDIT = {"key": "run ddp-1", "kind": "held", "text": "ddp-1: step 5 failed\nThe run holds"}


def test_held_ranks_come_first_and_holds_are_told_once_whoever_tells_of_them() -> None:
    look = host(3, at=100.0)
    look["holds"], look["notices"] = [HOLD], [EDIT, {**EDIT, "key": "x", "kind": "watching"}]
    other = {**host(0, name="host1"), "holds": [HOLD], "notices": [EDIT]}
    snapshot = LiveView().update([look, other], 100.0)
    first = snapshot["groups"][0]
    assert (first["ranks"], first["status"], first["doing"]) == ("1", "held", "train.py:42")
    assert (first["is_odd"], first["seconds"]) == (True, 10.0)
    assert snapshot["waits"][:2] == [
        "held: trainers 1 at train.py:42 in step (breakpoint()); `monarch debug` opens it",
        "held: ddp-1: step 5 failed",
    ]
    assert snapshot["edit_holds"] == ["ddp-1: step 5 failed\nThe run holds"]
    assert not snapshot["is_hang"]


def test_a_view_of_many_short_lived_actors_keeps_those_of_now_and_the_last_failures() -> None:
    view = LiveView()
    for second in range(20):
        look = host(1, at=float(second))
        (actor,) = look["procs"][0]["actors"]
        look["procs"][0]["actors"] = [
            {**actor, "mesh": f"{second} {number}", "name": f"a{second}.{number}",
             "status": "failed", "failure": "it"}
            for number in range(500)
        ]  # fmt: skip
        snapshot = view.update([look], float(second))
    assert len(view._counts_before) == 500
    assert snapshot["num_ranks"] == 1
    assert len(snapshot["failures"]) == 50
    assert len(view._failures) == 50


def test_sizes() -> None:
    assert [size_in_words(n) for n in (None, 5, 1500, 3 * 2**20, 9.1 * 2**30)] == [
        "-", "5", "1.5K", "3.0M", "9.1G",
    ]  # fmt: skip


@pytest.mark.long_but(1)
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_it_paints_scrolls_asks_and_ends(size: tuple[int, int]) -> None:
    from textual.widgets import DataTable, Static

    from monarch.view.top import MonarchTop

    asked: list[tuple[str, Sequence[str]]] = []

    def act(what: str, uids: Sequence[str]) -> str:
        asked.append((what, tuple(uids)))
        return "File train.py, line 3"

    async def until(pilot: Any, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline
            await pilot.pause(0.02)

    async def use() -> None:
        app = MonarchTop(lambda: [host(1024, odd=[5])], act, "demo", seconds=60)
        async with app.run_test(size=size) as pilot:
            table = app.query_one(DataTable)
            await until(pilot, lambda: table.row_count > 0)
            assert table.row_count == 2
            head = app.query_one("#head", Static)
            assert "1,024 ranks" in str(head.render())
            for at in range(20):  # A curve of its whole width, and the head is still one line.
                app._view.history.append({"rate": at, "at": at})
            app._show(app._view.update([host(1024, odd=[5])], 9.0))
            assert len(str(head.render()).split("\n")[0]) <= size[0] - 2
            await pilot.press("r")
            await until(pilot, lambda: table.row_count == 1024)
            await pilot.press("pagedown", "pagedown")
            await until(pilot, lambda: table.cursor_row > 10)
            await pilot.press("r")
            await until(pilot, lambda: table.row_count == 2)
            await pilot.press("ctrl+home", "s")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            assert asked == [("stacks", ("p5",))]
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await pilot.press("slash", *"step", "enter")
            await until(pilot, lambda: table.row_count == 1)
            await pilot.resize_terminal(size[0] + 20, size[1])
            await pilot.press("q")

    asyncio.run(use())


_FAKED = """
from monarch.view.top import MonarchTop
from tests.observe.test_observe_top import host

MonarchTop(lambda: [host(1024, odd=[5])], lambda what, uids: "File train.py, line 3", "demo").run()
"""


@pytest.mark.long
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
def test_a_person_uses_it_at_a_terminal(
    columns: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with on_terminal(folder, columns=columns, rows=rows, script=_FAKED) as terminal:
        terminal.until("0-4, 6-1023")
        assert "1,024 ranks" in terminal.text
        terminal.press("r")
        terminal.press("\x1b[6~\x1b[6~")  # Page down, twice.
        beyond = rf"trainers +{rows + 5} "  # What had no place at first.
        wait_for(lambda: re.search(beyond, terminal.text), 30.0)
        terminal.press("\x1b[Hrs")  # To the first, alike ones together, its stacks.
        terminal.until("File train.py, line 3")
        terminal.press("\x1b")
        painted = len(terminal.output)
        terminal.resize(30, 100)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        wait_for(lambda: "1,024 ranks" in terminal.output[painted:], 30.0)

        def is_left() -> bool:
            terminal.press("q")  # The first may close the stacks yet.
            return terminal.process.poll() is not None

        wait_for(is_left, 30.0)
        assert terminal.end() == 0
        assert terminal.settings == terminal.settings_before
        assert "Traceback" not in terminal.text
