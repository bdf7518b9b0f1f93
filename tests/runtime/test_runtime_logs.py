"""What procs print arrives at the client: all of it, and with the name of who printed it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.runs.recover.witness import Witness
from monarch.runtime.output.log_printer import LogPrinter
from monarch.wire.message import Log
from tests.actors import Echo
from tests.support import Printed, Program, wait_for

Start = Callable[..., Program]

SETUP = """
import os, sys
from monarch.actor import *
from tests.actors import *
"""


class Writes(Actor):
    @endpoint
    def raw(self, fd: int, data: bytes) -> None:
        os.write(fd, data)

    @endpoint
    def lines(self, count: int) -> None:
        for number in range(count):
            print(f"line {number}")


class Output(Printed):
    def wait_for_lines(self, *lines: str, stream: int = 1) -> None:
        wait_for(
            lambda: set(lines) <= set(self.lines(stream)),
            what=f"{lines}: {self.text(1)!r}, {self.text(2)!r}",
        )


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    return Output(monkeypatch)


@pytest.fixture
def writes(output: Output) -> Any:
    return this_host().spawn_procs({"gpus": 2}).spawn("writes", Writes)


def test_lines_have_the_name_and_rank_of_their_actor(output: Output) -> None:
    echo = this_host().spawn_procs({"gpus": 2}).spawn("trainer", Echo)
    echo.print.call("hello").get()
    echo.slice(gpus=1).print.call_one("trouble", 2).get()
    output.wait_for_lines("[trainer 0] hello", "[trainer 1] hello")
    output.wait_for_lines("[trainer 1] trouble", stream=2)
    assert output.lines(2) == ["[trainer 1] trouble"]


def test_who_watches_others_is_not_named(output: Output) -> None:
    procs = this_host().spawn_procs()
    echo = procs.spawn("trainer", Echo)
    procs.spawn("witness", Witness)
    echo.print.call_one("hello").get()
    output.wait_for_lines("[trainer 0] hello")


@pytest.mark.long
def test_what_is_written_below_python_comes_too(output: Output, writes: Any) -> None:
    writes.slice(gpus=0).raw.call_one(1, b"from C\n").get()
    writes.slice(gpus=0).raw.call_one(2, b"from C on stderr\n").get()
    output.wait_for_lines("[writes 0] from C")
    output.wait_for_lines("[writes 0] from C on stderr", stream=2)


def test_lines_stay_whole_and_in_order(output: Output, writes: Any) -> None:
    writes.lines.call(2000).get()
    wait_for(lambda: len(output.lines()) == 4000)
    for rank in range(2):
        mine = [line for line in output.lines() if line.startswith(f"[writes {rank}]")]
        assert mine == [f"[writes {rank}] line {number}" for number in range(2000)]


def test_parts_of_a_line_are_put_together(output: Output, writes: Any) -> None:
    one = writes.slice(gpus=0)
    for part in (b"one ", b"line", b"\nand the next\n\n", b"tail\r\n"):
        one.raw.call_one(1, part).get()
    output.wait_for_lines("[writes 0] tail")
    assert output.lines() == [
        "[writes 0] one line",
        "[writes 0] and the next",
        "[writes 0] ",
        "[writes 0] tail",
    ]


@pytest.mark.long
def test_what_is_no_text_does_no_harm(output: Output, writes: Any) -> None:
    writes.slice(gpus=0).raw.call_one(1, b"\xff\xfe bytes\n").get()
    output.wait_for_lines("[writes 0] \ufffd\ufffd bytes")


@pytest.mark.long
def test_a_line_without_an_end_is_cut_and_not_kept_for_ever(output: Output, writes: Any) -> None:
    writes.slice(gpus=0).raw.call_one(1, b"x" * 200_000 + b"\n").get()
    wait_for(lambda: sum(line.count("x") for line in output.lines()) == 200_000)


def test_what_a_child_of_a_proc_prints_comes_too(output: Output) -> None:
    class Runs(Actor):
        @endpoint
        def run(self) -> None:
            import subprocess

            subprocess.run(["echo", "from a child"], check=True)

    this_host().spawn_procs().spawn("runs", Runs).run.call_one().get()
    output.wait_for_lines("[runs 0] from a child")


def test_the_stream_can_be_switched_off_and_on(output: Output) -> None:
    import asyncio

    async def main() -> None:
        procs = this_host().spawn_procs()
        echo = procs.spawn("echo", Echo)
        await procs.logging_option(stream_to_client=False, aggregate_window_sec=None)
        await echo.print.call_one("hidden")
        await procs.stop()
        await procs.logging_option(stream_to_client=True, aggregate_window_sec=None)
        await this_host().spawn_procs().spawn("echo", Echo).print.call_one("seen")
        output.wait_for_lines("[echo 0] seen")
        assert "[echo 0] hidden" not in output.lines()
        with pytest.raises(ValueError, match="log level"):
            await procs.logging_option(level=256)
        with pytest.raises(RuntimeError, match="cannot set aggregate window"):
            await procs.logging_option(stream_to_client=False, aggregate_window_sec=3)

    asyncio.run(main())


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "ending",
    ["", "procs.stop().get()", "sys.exit(0)", "shutdown_context().get()"],
)
def test_nothing_is_lost_when_the_program_ends(program: Start, ending: str) -> None:
    started = program(
        f"""{SETUP}
procs = this_host().spawn_procs({{"gpus": 2}})
echo = procs.spawn("echo", Echo)
for number in range(300):
    echo.print.broadcast(f"out {{number}}")
    echo.print.broadcast(f"err {{number}}", 2)
echo.echo.call(1).get()
{ending}
"""
    )
    assert started.wait() == 0
    for lines, name in ((started.lines, "out"), (started.errors, "err")):
        for rank in range(2):
            mine = [line for line in lines if line.startswith(f"[echo {rank}]")]
            assert mine == [f"[echo {rank}] {name} {number}" for number in range(300)]


def test_the_last_words_of_a_cleanup_arrive(program: Start) -> None:
    started = program(
        f"""{SETUP}
class Speaks(Actor):
    @endpoint
    def echo(self): pass
    def __cleanup__(self, error):
        print("last words")
        sys.stdout.write("without an end")
this_host().spawn_procs().spawn("speaks", Speaks).echo.call_one().get()
"""
    )
    assert started.wait() == 0
    assert started.lines == ["[speaks 0] last words", "[speaks 0] without an end"]


def test_without_a_thread_to_be_had_lines_are_printed_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    printer = LogPrinter()
    printer.print(Log(uid="proc", label="worker 0", stream=1, host="host"), b"last words\n")
    printer.close()
    assert capsys.readouterr().out == "[worker 0] last words\n"


def test_a_printer_that_was_closed_prints_no_more() -> None:
    printer = LogPrinter()
    printer.flush()
    printer.close()
    printer.close()
