"""Actors that are held at breakpoints and errors. Apart from the tests, for procs to import."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint, this_host
from monarch.runs.recover.clock import held_seconds


def deeper(number: int) -> int:
    breakpoint()
    number += 10
    return number


def doubled(value: int) -> int:
    return 2 * value


def fail() -> None:
    raise ValueError("bad rank")


def by_rank(rank: int) -> int:
    breakpoint()
    rank += 1
    if rank == 3:
        fail()
    return rank


class Stepper(Actor):
    """Its endpoints are plain functions."""

    def __init__(self) -> None:
        self.loss = 0.5
        self.finally_ran = 0

    @endpoint
    def step(self, number: int) -> int:
        breakpoint()
        number += 1
        return number

    @endpoint
    def nested(self, number: int) -> int:
        return deeper(number) + 100

    @endpoint
    def steps_into(self, number: int) -> int:
        breakpoint()
        number = doubled(number)
        return number

    @endpoint
    def twice(self, number: int) -> int:
        breakpoint()
        number += 1
        breakpoint()
        number += 1
        return number

    @endpoint
    def odd_stands(self) -> int:
        rank = current_rank().rank
        if rank % 2:
            breakpoint()
            rank += 4
        return rank

    @endpoint
    def then_fails(self) -> int:
        breakpoint()
        return 1 // (self.finally_ran * 0)

    @endpoint
    def last_line(self) -> None:
        breakpoint()

    @endpoint
    def is_traced(self) -> bool:
        """By an editor; with Python 3.12 it asks the interpreter for events, and traces nothing."""
        if sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID):
            return True
        return sys.gettrace() is not None

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def divide(self, by: int) -> float:
        whole = 10
        try:
            return whole / (by + self.finally_ran * 0)
        finally:
            self.finally_ran += 1

    @endpoint
    def divide_until(self, good: int) -> float:
        try:
            return 10 / (0 if self.finally_ran < good else 5)
        finally:
            self.finally_ran += 1

    @endpoint
    def loops(self) -> int:
        turns = 0
        while self.loss:
            turns += 1
        return turns

    @endpoint
    def compiles(self, sign: str, go: str) -> float:
        """Has torch.compile trace a function, which is not over before there is a file ``go``."""
        import torch

        def backend(graph: Any, inputs: Any) -> Any:
            Path(sign).touch()
            while not Path(go).exists():
                time.sleep(0.005)
            return graph.forward

        torch._dynamo.reset()
        compiled = torch.compile(lambda x: 2 * x, backend=backend)
        return float(compiled(torch.ones(1)))

    @endpoint
    def hogs(self, sign: str, gate: str) -> bool:
        """Holds the GIL, as C code may, once there is a file as a sign of it, until somebody opens
        the named pipe ``gate`` to write. Whether that came."""
        Path(sign).touch()
        return int(ctypes.PyDLL(None).open(gate.encode(), os.O_RDONLY)) >= 0

    @endpoint
    def set_loss(self, loss: float) -> None:
        self.loss = loss


class Clocked(Actor):
    """Tells of the clock of limits in its proc."""

    @endpoint
    def held_seconds(self) -> float:
        return held_seconds()

    @endpoint
    def spawns(self) -> Any:
        return this_host().spawn_procs(name="below").spawn("below", Clocked)


class AsyncStepper(Actor):
    """Its endpoints are coroutines."""

    def __init__(self) -> None:
        self.num_runs = 0

    @endpoint
    async def step(self, number: int) -> int:
        await asyncio.sleep(0)
        breakpoint()
        number += 1
        await asyncio.sleep(0)
        return number

    @endpoint
    async def of_rank(self) -> int:
        return by_rank(current_rank().rank)

    @endpoint
    async def runs(self, function: Any, value: Any) -> Any:
        return function(value)

    @endpoint
    async def divide_until(self, good: int) -> float:
        await asyncio.sleep(0)
        self.num_runs += 1
        return 10 / (0 if self.num_runs <= good else 5)

    @concurrent_endpoint
    async def beside(self) -> str:
        return "beside"
