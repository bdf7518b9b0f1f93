"""Actors that several tests use. Apart from the tests, so that procs need not import pytest."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any

from monarch.actor import (
    Actor,
    ActorMesh,
    MeshFailure,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)


class Echo(Actor):
    """Answers, remembers, fails and dies on request."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.born_as = current_rank().rank
        self.log: list[Any] = []

    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def thread(self) -> int:
        return threading.get_ident()

    @endpoint
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def add(self, value: int, *, times: int = 1) -> int:
        self.value += value * times
        return self.value

    @endpoint
    def ranks(self) -> tuple[int, int, int, dict[str, int]]:
        spawned = context().actor_instance.rank
        return current_rank().rank, spawned.rank, self.born_as, current_size()

    @endpoint
    def append(self, value: Any) -> None:
        self.log.append(value)

    @endpoint
    def read(self) -> list[Any]:
        return self.log

    @endpoint
    def fail(self, *ranks: int) -> int:
        rank = context().actor_instance.rank.rank
        if not ranks or rank in ranks:
            raise ValueError(f"rank {rank} does not like it")
        return rank

    @endpoint
    def fail_badly(self) -> None:
        raise KeyboardInterrupt("not an Exception")

    @endpoint
    def fail_unpicklably(self) -> None:
        class Odd(Exception):
            def __init__(self) -> None:
                super().__init__("odd")
                self.lock = threading.Lock()

        raise Odd

    @endpoint
    def unpicklable(self) -> Any:
        return threading.Lock()

    @endpoint
    def print(self, text: str, stream: int = 1) -> None:
        print(text, file=sys.stdout if stream == 1 else sys.stderr)

    @endpoint
    def wait_for_file(self, path: str) -> int:
        while not os.path.exists(path):
            time.sleep(0.002)
        return self.born_as

    @endpoint
    def exit(self, status: int) -> None:
        os._exit(status)

    @endpoint
    def kill(self, number: int = signal.SIGKILL) -> None:
        print("about to die")
        os.kill(os.getpid(), number)
        threading.Event().wait()

    def helper(self, value: int) -> int:
        return value + self.value


class Async(Actor):
    """Coroutines, to see what runs beside what."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.released: dict[str, asyncio.Event] = {}

    def _event(self, name: str) -> asyncio.Event:
        return self.released.setdefault(name, asyncio.Event())

    @endpoint
    async def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    async def task(self, name: str) -> str:
        self.log.append(f"start {name}")
        for _ in range(5):
            await asyncio.sleep(0)
        self.log.append(f"end {name}")
        return name

    @endpoint
    async def read(self) -> list[str]:
        return self.log

    @endpoint
    async def meet(self, other: ActorMesh) -> str:
        return "met " + str(await other.echo.call_one("you"))

    @concurrent_endpoint
    async def wait(self, name: str) -> str:
        self.log.append(f"wait {name}")
        try:
            await self._event(name).wait()
        except asyncio.CancelledError:
            self.log.append(f"cancelled {name}")
            raise
        return name

    @concurrent_endpoint
    async def fail_later(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    @endpoint
    async def release(self, name: str) -> None:
        self._event(name).set()

    @endpoint
    async def fail(self) -> None:
        raise ValueError("async")

    @endpoint
    async def block(self, other: ActorMesh) -> list[str]:
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.echo.call_one(1).get()
        return [str(one.message) for one in caught]


class Answers(Actor):
    """Answers through its port."""

    @endpoint(explicit_response_port=True)
    def now(self, port: Port[Any], value: Any) -> str:
        port.send(value)
        return "ignored"

    @endpoint(explicit_response_port=True)
    def from_a_thread(self, port: Port[Any], value: Any) -> None:
        threading.Thread(target=port.send, args=(value,)).start()

    @endpoint(explicit_response_port=True)
    def with_an_error(self, port: Port[Any]) -> None:
        port.exception(KeyError("sent"))

    @endpoint(explicit_response_port=True)
    def often(self, port: Port[Any], times: int) -> None:
        for number in range(times):
            port.send(number)

    @endpoint(explicit_response_port=True)
    def never(self, port: Port[Any]) -> None:
        raise ValueError("no answer sent")


class BadInit(Actor):
    def __init__(self, bad_rank: int = -1) -> None:
        if bad_rank in (-1, current_rank().rank):
            raise ValueError("cannot be made")

    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value


class Parent(Actor):
    """Spawns children, and decides about their failures."""

    def __init__(self, verdict: str = "handle", path: str = "") -> None:
        self.verdict = verdict
        self.path = path
        self.failures: list[str] = []
        self.children: list[Any] = []
        self.procs: list[Any] = []

    def _note(self, text: str) -> None:
        if self.path:
            with open(self.path, "a") as file:
                file.write(text + "\n")

    @endpoint
    def spawn_here(self, cls: type = Echo, *args: Any) -> Any:
        self.children.append(this_proc().spawn("child", cls, *args))
        return self.children[-1]

    @endpoint
    def spawn_procs(self, count: int, cls: type = Echo, *args: Any) -> Any:
        self.procs.append(this_host().spawn_procs({"sub": count}))
        self.children.append(self.procs[-1].spawn("child", cls, *args))
        return self.children[-1]

    @endpoint
    def seen(self) -> list[str]:
        return self.failures

    @endpoint
    def call_child(self) -> Any:
        return self.children[-1].echo.call(5).get().values()

    @endpoint
    def stop_procs(self) -> None:
        self.procs[-1].stop().get()

    def __supervise__(self, failure: MeshFailure) -> bool | None:
        self.failures.append(failure.report())
        self._note("supervise " + failure.report())
        if self.verdict == "raise":
            raise RuntimeError("the supervisor itself is broken")
        return self.verdict == "handle"

    def __cleanup__(self, error: Exception | None) -> None:
        self._note(f"cleanup {error!r}")


class Cleans(Actor):
    """Writes down how it ended."""

    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("on request")

    def __cleanup__(self, error: Exception | None) -> None:
        with open(self.path, "a") as file:
            file.write(f"{current_rank().rank} {error!r}\n")


class Keeper(Actor):
    """Keeps large values, or sends them back."""

    def __init__(self, first: Any = None) -> None:
        self.kept = [first]

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept.append(value)

    @endpoint
    def get(self, index: int) -> Any:
        return self.kept[index]

    @endpoint
    def add(self, number: int) -> None:
        for value in self.kept[1:]:
            value += number

    @endpoint
    def sums(self) -> list[float]:
        return [float(value.sum()) for value in self.kept[1:]]

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fork_and_drop(self) -> None:
        """Have a copy of this process end, with all that it looks at."""
        child = multiprocessing.get_context("fork").Process(target=self.kept.clear)
        child.start()
        child.join()

    @endpoint
    def choke(self, value: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait()
