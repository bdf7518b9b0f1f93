"""In a notebook, lines appear in the cell that runs, and all of them before it is done."""

from __future__ import annotations

import contextvars
import io
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import shutdown_context, this_host
from tests.actors import Echo

SECONDS = 60.0

current_cell: contextvars.ContextVar[str] = contextvars.ContextVar("current_cell")


class CellOutput(io.TextIOBase):
    """Like the kernel's streams: finds the cell by the context it is written from."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}

    def write(self, text: str) -> int:
        cell = current_cell.get("no cell")
        self.cells[cell] = self.cells.get(cell, "") + text
        return len(text)


class FakeShell:
    """As much of IPython's shell as we use."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., None]]] = {
            "pre_run_cell": [],
            "post_run_cell": [],
        }
        self.events = self

    def register(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].append(callback)

    def unregister(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].remove(callback)

    def run_cell(self, name: str, code: Callable[[], None]) -> None:
        def run() -> None:
            current_cell.set(name)
            for callback in list(self.callbacks["pre_run_cell"]):
                callback(object())
            code()
            for callback in list(self.callbacks["post_run_cell"]):
                callback(object())

        contextvars.copy_context().run(run)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShell]:
    shutdown_context().get(timeout=SECONDS)
    shell = FakeShell()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    yield shell
    shutdown_context().get(timeout=SECONDS)


def test_lines_are_in_their_cell_when_it_is_done(
    shell: FakeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = CellOutput()
    monkeypatch.setattr(sys, "stdout", output)
    made: dict[str, Any] = {}

    def spawn() -> None:
        made["procs"] = this_host().spawn_procs({"gpus": 2})
        made["echo"] = made["procs"].spawn("echo", Echo)
        made["echo"].print.call("made").get(timeout=SECONDS)

    shell.run_cell("1", spawn)
    assert sorted(output.cells.pop("1").splitlines()) == ["[echo 0] made", "[echo 1] made"]
    for cell in ("2", "3"):
        shell.run_cell(cell, lambda: made["echo"].print.call("again").get(timeout=SECONDS))
        assert sorted(output.cells.pop(cell).splitlines()) == ["[echo 0] again", "[echo 1] again"]
    assert output.cells == {}
    made["procs"].stop().get(timeout=SECONDS)


def test_a_cell_shows_what_is_being_aggregated(
    shell: FakeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = CellOutput()
    monkeypatch.setattr(sys, "stdout", output)

    def cell() -> None:
        import asyncio

        procs = this_host().spawn_procs({"gpus": 2})
        echo = procs.spawn("echo", Echo)
        asyncio.run(_aggregate(procs))
        for _ in range(5):
            echo.print.call("ipython test log").get(timeout=SECONDS)

    shell.run_cell("1", cell)
    assert "[10 similar log lines] [echo 0-1] ipython test log\n" in output.cells["1"]


async def _aggregate(procs: Any) -> None:
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=600)


def test_the_notebook_is_left_with_the_client(shell: FakeShell) -> None:
    this_host().spawn_procs().spawn("echo", Echo).echo.call_one().get(timeout=SECONDS)
    assert [len(callbacks) for callbacks in shell.callbacks.values()] == [1, 1]
    shutdown_context().get(timeout=SECONDS)
    assert [len(callbacks) for callbacks in shell.callbacks.values()] == [0, 0]
