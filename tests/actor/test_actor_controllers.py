"""Controllers: one in the whole program, in the client's process, found by name from anywhere."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    SupervisionError,
    endpoint,
    get_or_spawn_controller,
    this_host,
)
from tests.actors import Echo
from tests.support import wait_for

pytestmark = pytest.mark.in_a_world_too

SECONDS = 60.0


class Ledger(Actor):
    """Notes in a file that it was made."""

    def __init__(self, path: str, owner: str = "") -> None:
        self.owner = owner
        with open(path, "a") as file:
            file.write("made\n")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def who(self) -> str:
        return self.owner

    @endpoint
    def fail(self) -> None:
        raise ValueError("the ledger is torn")


class Asks(Actor):
    @endpoint
    async def ask(self, name: str, path: str) -> int:
        ledger = await get_or_spawn_controller(name, Ledger, path)
        return int(await ledger.pid.call_one())


def made(path: Any) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_controller_lives_in_the_clients_process_and_is_made_once(tmp_path: Any) -> None:
    path = tmp_path / "made"
    first = get_or_spawn_controller("ledger", Ledger, str(path)).get(timeout=SECONDS)
    second = get_or_spawn_controller("ledger", Ledger, str(path)).get(timeout=SECONDS)
    assert first.pid.call_one().get(timeout=SECONDS) == os.getpid()
    assert second.pid.call_one().get(timeout=SECONDS) == os.getpid()
    assert made(path) == 1


def test_procs_get_the_same_controller_in_the_clients_process(tmp_path: Any) -> None:
    path = tmp_path / "made"
    asks = this_host().spawn_procs({"gpus": 2}).spawn("asks", Asks)
    pids = asks.ask.call("from procs", str(path)).get(timeout=SECONDS).values()
    assert pids == [os.getpid()] * 2
    ledger = get_or_spawn_controller("from procs", Ledger, str(path)).get(timeout=SECONDS)
    assert ledger.pid.call_one().get(timeout=SECONDS) == os.getpid()
    assert made(path) == 1


def test_a_controller_made_for_a_proc_outlives_the_proc(tmp_path: Any) -> None:
    class AsksHere(Actor):
        @endpoint
        def ask(self, name: str, path: str) -> Any:
            return get_or_spawn_controller(name, Ledger, path, owner="a proc").get()

    procs = this_host().spawn_procs()
    path = str(tmp_path / "made")
    ledger = procs.spawn("asks", AsksHere).ask.call_one("outlives", path).get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)
    assert ledger.who.call_one().get(timeout=SECONDS) == "a proc"


def test_many_who_ask_at_once_get_one(tmp_path: Any) -> None:
    path = tmp_path / "made"
    asks = this_host().spawn_procs({"gpus": 2}).spawn("asks", Asks)
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            barrier.wait()
            get_or_spawn_controller("contended", Ledger, str(path)).get(timeout=SECONDS)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    asks.ask.call("contended", str(path)).get(timeout=SECONDS)
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert made(path) == 1


def test_a_controller_that_failed_is_reported_to_who_asks_next_and_the_others_go_on(
    tmp_path: Any,
) -> None:
    path = str(tmp_path / "made")
    torn = get_or_spawn_controller("torn", Ledger, path).get(timeout=SECONDS)
    whole = get_or_spawn_controller("whole", Ledger, path).get(timeout=SECONDS)
    torn.fail.broadcast()
    with pytest.raises(SupervisionError, match="the ledger is torn"):
        torn.who.call_one().get(timeout=SECONDS)

    def told() -> BaseException | None:
        return get_or_spawn_controller("torn", Ledger, path).exception(timeout=SECONDS)

    # The report to the registry and the refusal of a call are on their way side by side.
    error = wait_for(told, SECONDS)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, ValueError)
    assert "Failure on torn" in str(error)
    assert "the ledger is torn" in str(error)
    assert whole.pid.call_one().get(timeout=SECONDS) == os.getpid()


def test_arguments_that_do_not_fit_are_reported_and_the_name_stays_free(tmp_path: Any) -> None:
    with pytest.raises(ActorError, match="missing a required argument"):
        get_or_spawn_controller("fits", Ledger).get(timeout=SECONDS)
    path = str(tmp_path / "made")
    ledger = get_or_spawn_controller("fits", Ledger, path, owner="me").get(timeout=SECONDS)
    assert ledger.who.call_one().get(timeout=SECONDS) == "me"


def test_a_controller_spawns_real_processes() -> None:
    class Spawns(Actor):
        @endpoint
        def spawn(self) -> Any:
            return this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)

    spawns = get_or_spawn_controller("spawns", Spawns).get(timeout=SECONDS)
    echo = spawns.spawn.call_one().get(timeout=SECONDS)
    pids = set(echo.pid.call().get(timeout=SECONDS).values())
    assert len(pids) == 2
    assert os.getpid() not in pids
