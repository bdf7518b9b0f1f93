"""Stands in for Ray: as much of it as a job asks for. Actors are processes, and begin again."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from tests.job.fakes import machines

from . import exceptions, util

__all__ = ["exceptions", "util"]

NUM_NODES = 4
_END_SECONDS = 10.0
_connected = False


def init(
    address: str | None = None, *, namespace: str | None = None, log_to_driver: bool = True,
    logging_level: int = 0, configure_logging: bool = True,
) -> None:  # fmt: skip
    global _connected
    if told := machines.refusal():
        raise ConnectionError(told)
    _connected = True


def is_initialized() -> bool:
    return _connected


def shutdown() -> None:
    global _connected
    _connected = False


def nodes() -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}} for _ in range(NUM_NODES)]


def remote(cls: type) -> _ActorClass:
    return _ActorClass(cls, {})


class _ActorClass:
    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def options(self, **options: Any) -> _ActorClass:
        return _ActorClass(self._cls, options)

    def remote(self, *arguments: Any) -> _Actor:
        place = actor_folder(self._options["name"])
        place.mkdir(parents=True)
        (place / "order").write_bytes(pickle.dumps((self._cls, arguments)))
        [address] = machines.new_addresses(1)
        with open(place / "log", "wb") as log:
            subprocess.run(
                ["sh", "-c", '"$@" &', "sh", sys.executable, "-m", "tests.job.fakes.ray_actor",
                 str(place)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True,
                start_new_session=True, env={**os.environ, "FAKE_RAY_ADDRESS": address},
            )  # fmt: skip
        return _Actor(place)


def actor_folder(name: str) -> Path:
    return machines.folder() / "actors" / name


class _Actor:
    def __init__(self, place: Path) -> None:
        self._place = place

    def __getattr__(self, method: str) -> _Method:
        return _Method(self._place, method)


class _Method:
    def __init__(self, place: Path, name: str) -> None:
        self._place, self._name = place, name

    def remote(self) -> _Method:
        return self

    def result(self, deadline: float) -> Any:
        while True:
            try:
                with Client(("127.0.0.1", int((self._place / "port").read_text()))) as actor:
                    actor.send(self._name)
                    return actor.recv()
            except (OSError, EOFError, ValueError):
                if time.monotonic() > deadline:
                    raise exceptions.GetTimeoutError("the actor does not answer") from None
                time.sleep(0.02)


def get(refs: list[_Method], timeout: float = 60.0) -> list[Any]:
    return [ref.result(time.monotonic() + timeout) for ref in refs]


def get_actor(name: str, namespace: str | None = None) -> _Actor:
    if not actor_folder(name).exists():
        raise ValueError(f"Failed to look up actor with name '{name}'")
    return _Actor(actor_folder(name))


def kill(actor: _Actor, *, no_restart: bool = True) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not (actor._place / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # It is only beginning.
    pid = int((actor._place / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    while machines.is_up({"pid": pid}) and time.monotonic() < deadline:
        time.sleep(0.01)
    shutil.rmtree(actor._place)
