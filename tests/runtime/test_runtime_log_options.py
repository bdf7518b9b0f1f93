"""`logging_option`: whether lines reach the client, from which level on, and how many as one."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from tests.actors import Echo
from tests.support import Printed, Program

Start = Callable[..., Program]


class Speaks(Actor):
    @endpoint
    def say(self, text: str, times: int = 1) -> None:
        for _ in range(times):
            print(text)

    @endpoint
    def log(self, level: int, text: str) -> None:
        logging.getLogger("a.library").log(level, text)

    @endpoint
    def silence_others(self, procs: Any) -> None:
        asyncio.run(procs.logging_option(stream_to_client=False))


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    return Printed(monkeypatch)


@pytest.mark.long
@awaited
async def test_similar_lines_of_all_ranks_become_one(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 4})
    actors = procs.spawn("trainer", Speaks)
    await procs.logging_option(aggregate_window_sec=600)
    await actors.say.call("the same words", 5)
    await actors.slice(gpus=2).say.call_one("something else")
    await procs.stop()
    assert re.fullmatch(
        r">>> Aggregated Logs \(.*\) >>>\n"
        r"\[20 similar log lines\] \[trainer 0-3\] the same words\n"
        r"\[1 similar log lines\] \[trainer 2\] something else\n"
        r"<<< Aggregated Logs \(.*\) <<<\n",
        printed.text(),
    )
    assert printed.text(2) == ""


@pytest.mark.long
@awaited
async def test_a_window_shows_itself_when_its_time_is_up(printed: Printed) -> None:
    procs = this_host().spawn_procs()
    await procs.logging_option(aggregate_window_sec=1)
    await procs.spawn("one", Speaks).say.call_one("in time")
    printed.wait_for(r"\[1 similar log lines\] \[one 0\] in time")


@awaited
async def test_ending_aggregation_shows_what_was_gathered(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("one", Speaks)
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=600)
    await actors.say.call("gathered", 5)
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=None)
    await actors.say.call("alone", 5)
    printed.wait_for(r"\[10 similar log lines\].* gathered")
    await procs.stop()
    assert len(re.findall(r"(?m)^\[one [01]\] alone$", printed.text())) == 10
    assert not re.search("similar log lines.*alone", printed.text())


@awaited
async def test_a_shorter_window_shows_the_earlier_lines_too(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("one", Speaks)
    await procs.logging_option(aggregate_window_sec=600)
    await actors.say.call("first batch", 3)
    await procs.logging_option(aggregate_window_sec=1)
    printed.wait_for(r"\[6 similar log lines\].*first batch")


@awaited
async def test_a_slice_has_options_of_its_own(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("one", Speaks)
    await procs.slice(gpus=1).logging_option(stream_to_client=False)
    await actors.say.call("hello")
    await procs.stop()
    assert printed.text() == "[one 0] hello\n"


@awaited
async def test_an_actor_mesh_decides_for_its_procs(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("one", Speaks)
    await actors.slice(gpus=1).logging_option(stream_to_client=False)
    await actors.say.call("hello")
    await actors.logging_option(aggregate_window_sec=600)
    await actors.say.call("again")
    await procs.stop()
    printed.wait_for(r"\[2 similar log lines\] \[one 0-1\] again")
    assert re.findall(r"(?m)^\[.*hello$", printed.text()) == ["[one 0] hello"]


@awaited
async def test_the_level_decides_which_records_are_printed(printed: Printed) -> None:
    procs = this_host().spawn_procs()
    one = procs.spawn("one", Speaks)
    for level in (logging.DEBUG, logging.INFO):
        await one.log.call_one(level, f"by default {level}")
    await procs.logging_option(level=logging.ERROR, aggregate_window_sec=None)
    for level in (logging.WARNING, logging.ERROR):
        await one.log.call_one(level, f"errors {level}")
    await procs.logging_option(level=logging.DEBUG, aggregate_window_sec=None)
    await one.log.call_one(logging.DEBUG, "all")
    await procs.stop()
    found = re.findall(r"(by default \d+|errors \d+|all)$", printed.text(2), re.MULTILINE)
    assert found == ["by default 20", "errors 40", "all"]
    assert len(printed.text(2).splitlines()) == 3


@awaited
async def test_a_host_mesh_decides_for_later_procs_too(printed: Printed) -> None:
    host = this_host()
    before = host.spawn_procs()
    early = before.spawn("early", Speaks)
    await host.logging_option(stream_to_client=False, level=logging.CRITICAL)
    try:
        late = host.spawn_procs().spawn("late", Speaks)
        for one in (early, late):
            await one.say.call_one("hidden")
            await one.log.call_one(logging.ERROR, "hidden")
        await host.logging_option(aggregate_window_sec=None)
        await late.say.call_one("seen")
        await late.log.call_one(logging.INFO, "not seen")
    finally:
        await this_host().logging_option(aggregate_window_sec=None)
    printed.wait_for(r"\[late 0\] seen")
    assert "hidden" not in printed.text() + printed.text(2)


@awaited
async def test_an_actor_may_set_options_too(printed: Printed) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("one", Speaks)
    await actors.slice(gpus=0).silence_others.call_one(procs.slice(gpus=1))
    await actors.say.call("hello")
    await procs.stop()
    assert printed.text() == "[one 0] hello\n"


@awaited
async def test_mistakes_are_named() -> None:
    procs = this_host().spawn_procs()
    for level in (-1, 256):
        with pytest.raises(ValueError, match="log level"):
            await procs.logging_option(level=level)
    with pytest.raises(RuntimeError, match="cannot set aggregate window without streaming"):
        await procs.logging_option(stream_to_client=False, aggregate_window_sec=3)
    with pytest.raises(ValueError, match="window"):
        await procs.logging_option(aggregate_window_sec=0)
    await procs.logging_option(stream_to_client=False)


@awaited
async def test_options_of_dead_procs_are_no_error() -> None:
    procs = this_host().spawn_procs()
    await procs.spawn("one", Echo).echo.call_one()
    await procs.stop()
    await procs.logging_option(aggregate_window_sec=None)


def test_the_end_of_the_program_shows_what_was_gathered(program: Start) -> None:
    started = program(
        """
        from monarch.actor import *
        from tests.actors import Echo
        import asyncio
        async def main():
            procs = this_host().spawn_procs({"gpus": 4})
            echo = procs.spawn("echo", Echo)
            await procs.logging_option(aggregate_window_sec=600)
            for _ in range(5):
                await echo.print.call("has print streaming")
        asyncio.run(main())
        """
    )
    assert started.wait() == 0
    assert started.lines[1] == "[20 similar log lines] [echo 0-3] has print streaming"
    assert len(started.lines) == 3
