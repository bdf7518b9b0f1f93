"""Workers that programs for Monarch start by its own words."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Future,
    Port,
    attach_to_workers,
    endpoint,
    get_or_spawn_controller,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.errors import SupervisionError
from tests.actors import Echo

SECONDS = 60.0

SERVE = """
import sys, warnings
warnings.simplefilter("ignore")
from monarch.actor import run_worker_loop_forever as serve
serve(address=sys.argv[1], ca="trust_all_connections")
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _use(worker: subprocess.Popen[bytes], url: str) -> None:
    try:
        hosts = attach_to_workers(workers=[url])
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=SECONDS).item(hosts=0) == 3
        hosts.shutdown().get(timeout=SECONDS)
        assert worker.wait(SECONDS) == 0
    finally:
        worker.kill()
        worker.wait()
        shutdown_context().get(timeout=SECONDS)


@pytest.mark.long
def test_one_that_would_listen_everywhere_listens_where_its_clients_look() -> None:
    port = _free_port()
    url = f"tcp://127.0.0.1:{port}"
    address = f"{url}@tcp://0.0.0.0:{port}"
    worker = subprocess.Popen([sys.executable, "-c", SERVE, address], stderr=subprocess.PIPE)
    _use(worker, address)
    assert worker.stderr is not None
    assert f"listening at {url} only" in worker.stderr.read().decode()
    worker.stderr.close()


def test_one_that_other_machines_are_to_reach_needs_a_secret() -> None:
    address = f"tcp://192.0.2.1:1@tcp://0.0.0.0:{_free_port()}"
    serve = [sys.executable, "-c", SERVE, address]
    run = subprocess.run(serve, capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 1
    assert "without a job secret" in run.stderr


@pytest.mark.parametrize("listens", [True, False])
def test_one_that_takes_over_a_socket(listens: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        port, fd = listener.getsockname()[1], listener.fileno()
        address = f"tcp://127.0.0.1:fd{fd}"
        worker = subprocess.Popen([sys.executable, "-c", SERVE, address], pass_fds=[fd])
    _use(worker, f"tcp://127.0.0.1:{port}")


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def get_value(self) -> int:
        return self.value

    @endpoint(explicit_response_port=True)
    def refuse(self, port: Port[Any]) -> None:
        port.exception(obj=ValueError("no"))


def test_arguments_by_the_names_they_have_there() -> None:
    counter = get_or_spawn_controller("counter", Class=Counter, start=3).get(timeout=SECONDS)
    assert counter.get_value.call_one().get(timeout=SECONDS) == 3
    with pytest.raises(ValueError, match="no"):
        counter.refuse.call_one().get(timeout=SECONDS)


def test_a_future_is_not_made_by_hand() -> None:
    with pytest.raises(TypeError, match="Future objects are returned by Monarch operations"):
        Future()
    with pytest.raises(TypeError, match="unexpected keyword argument 'coro'"):
        Future(coro=None)  # type: ignore[call-arg]


def test_a_message_that_is_too_large_is_what_supervision_says_too() -> None:
    shutdown_context().get(timeout=SECONDS)
    with configured(codec_max_frame_length=1 << 20):
        echo = this_host().spawn_procs().spawn("echo", Echo)
        with pytest.raises(SupervisionError, match="beyond the limit") as caught:
            echo.echo.call_one(bytes(2 << 20))
    assert isinstance(caught.value, ValueError)
    shutdown_context().get(timeout=SECONDS)
