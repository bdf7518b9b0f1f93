"""Host agents in processes of their own, and the clients that come and go."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import (
    HostMesh,
    MeshFailure,
    SupervisionError,
    attach_to_workers,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.errors import HostBusy, HostUnreachable
from monarch.net.framing import frame
from monarch.tools.network import free_port
from tests.actors import Echo
from tests.support import Printed, Program, is_running, scan_port, wait_for

Start = Callable[..., Program]

SECONDS = 60.0

SERVE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address={url!r})
"""

CLIENT = """
import os, sys, signal, time, threading
from monarch.actor import *
from tests.actors import *
hosts = attach_to_workers(workers=[{url!r}])
hosts.initialized.get(timeout=30)
procs = hosts.spawn_procs({{"gpus": 2}}, name="workers")
echo = procs.spawn("echo", Echo)
print("pids", *echo.pid.call().get().values(), flush=True)
"""


PRINTS = (
    CLIENT
    + """
for number in range(300):
    echo.print.broadcast(f"line {{number}}")
echo.echo.call(1).get()
{ending}
"""
)


def attach(*urls: str, **options: Any) -> HostMesh:
    return attach_to_workers(workers=urls, **options)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Shorter than what tmp_path gives: it holds Unix sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(params=["ipc", "tcp"])
def url(request: pytest.FixtureRequest, folder: Path) -> str:
    return f"ipc://{folder}/host" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def ipc(folder: Path) -> str:
    return f"ipc://{folder}/host"


@pytest.fixture
def serve(program: Start, faults: list[MeshFailure]) -> Iterator[Callable[[str], Program]]:
    yield lambda url: program(SERVE.format(url=url))
    # Before the agents are killed, which would be a failure.
    shutdown_context().get(timeout=SECONDS)


def pids_of(client: Program) -> list[int]:
    return [int(pid) for pid in client.line("pids").split()]


def all_gone(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


def test_attached_hosts_spawn_and_answer(serve: Any, url: str) -> None:
    agent = serve(url)
    hosts = attach(url)
    assert hosts.sizes == {"hosts": 1}
    procs = hosts.spawn_procs({"gpus": 2})
    assert procs.sizes == {"hosts": 1, "gpus": 2}
    echo = procs.spawn("echo", Echo)
    assert echo.echo.call(5).get(timeout=SECONDS).values() == [5, 5]
    pids = echo.pid.call().get().values()
    (template,) = {psutil.Process(pid).ppid() for pid in pids}
    # There may be a second one already, with what these have imported.
    assert template in [child.pid for child in psutil.Process(agent.pid).children()]
    with pytest.raises(ValueError, match="overlap"):
        hosts.spawn_procs({"hosts": 2})
    procs.stop().get(timeout=SECONDS)
    assert all_gone(pids)


def test_two_hosts_are_one_mesh_and_their_actors_meet(serve: Any, folder: Path) -> None:
    urls = [f"ipc://{folder}/one", f"tcp://127.0.0.1:{free_port()}"]
    agents = [serve(url) for url in urls]
    hosts = attach(*urls)
    assert hosts.sizes == {"hosts": 2}
    procs = hosts.spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    ranks = [rank for rank, *_ in echo.ranks.call().get(timeout=SECONDS).values()]
    assert ranks == [0, 1, 2, 3]
    parents = [psutil.Process(pid).ppid() for pid in echo.pid.call().get().values()]
    grandparents = [psutil.Process(pid).ppid() for pid in parents]
    assert grandparents == [agents[0].pid] * 2 + [agents[1].pid] * 2

    from monarch.actor import Actor, endpoint

    class Relay(Actor):
        @endpoint
        def relay(self, mesh: Any) -> Any:
            return mesh.echo.call("hi").get(timeout=SECONDS).values()

    here = this_host().spawn_procs().spawn("here", Relay)
    there = procs.spawn("there", Relay)
    assert here.relay.call_one(echo).get(timeout=SECONDS) == ["hi"] * 4
    assert there.relay.call(echo).get(timeout=SECONDS).values() == [["hi"] * 4] * 4
    one = hosts.slice(hosts=1).spawn_procs({"gpus": 1}).spawn("part", Echo)
    assert one.echo.call_one(1).get(timeout=SECONDS) == 1


@pytest.mark.long
def test_a_host_hangs_up_on_procs_of_other_hosts_that_have_ended(serve: Any, folder: Path) -> None:
    agents = [serve(url) for url in (f"ipc://{folder}/one", f"ipc://{folder}/two")]
    hosts = attach(f"ipc://{folder}/one", f"ipc://{folder}/two")
    here, there = hosts.slice(hosts=0), hosts.slice(hosts=1)

    from monarch.actor import Actor, endpoint

    class Relay(Actor):
        @endpoint
        def relay(self, mesh: Any) -> Any:
            return mesh.echo.call_one("hi").get(timeout=SECONDS)

    target = there.spawn_procs({"gpus": 1}).spawn("target", Echo)

    def visit() -> None:
        procs = here.spawn_procs({"gpus": 2})
        relays = procs.spawn("relay", Relay)
        # The target's host is asked to tell the visitors of the target's end.
        assert relays.relay.call(target).get(timeout=SECONDS).values() == ["hi", "hi"]
        procs.stop().get(timeout=SECONDS)

    def num_open() -> int:
        # The target's process as well: it has answered them.
        family = [psutil.Process(agents[1].pid), psutil.Process(pid)]
        return sum(one.num_fds() for one in family)

    pid = target.pid.call_one().get(timeout=SECONDS)
    visit()
    num_before = num_open()
    for _ in range(4):
        visit()
    wait_for(lambda: num_open() <= num_before, what="the connections to the dead are closed")


def test_a_client_may_come_before_its_host(serve: Any, url: str) -> None:
    hosts = attach(url)
    answer = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo).echo.call(1)
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.02)
    serve(url)
    assert answer.get(timeout=SECONDS).values() == [1, 1]


def test_what_the_procs_of_a_host_print_comes_to_the_client(
    serve: Any, ipc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Printed(monkeypatch)
    serve(ipc)
    echo = attach(ipc).spawn_procs({"gpus": 2}).spawn("echo", Echo)
    echo.slice(gpus=1).print.call_one("over there").get(timeout=SECONDS)
    printed.wait_for(r"\[echo 1\] over there\n")


@pytest.mark.long_but(1)
@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_a_host_is_ready_for_the_next_client_when_one_has_left(
    program: Start, serve: Any, url: str, ending: str
) -> None:
    agent = serve(url)
    first = program(CLIENT.format(url=url) + ending)
    pids = pids_of(first)
    first.wait()
    wait_for(lambda: all_gone(pids))
    second = program(CLIENT.format(url=url))
    assert second.wait() == 0, second.story()
    assert second.errors == []
    assert is_running(agent.pid)
    assert agent.errors == []


def test_a_second_client_is_told_who_is_there_and_may_take_over(
    program: Start, serve: Any, ipc: str
) -> None:
    serve(ipc)
    first = program(
        CLIENT.format(url=ipc)
        + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: print("fault", failure.reason, flush=True)
try:
    echo.wait_for_file.call("/never").get()
except SupervisionError as error:
    print("lost", str(error).replace(chr(10), " "), flush=True)
os._exit(0)
"""
    )
    pids = pids_of(first)
    refused = attach(ipc)
    with pytest.raises(HostBusy, match=rf"pid {first.pid}") as caught:
        refused.initialized.get(timeout=SECONDS)
    assert caught.value.url == ipc
    assert "takeover=True" in str(caught.value)
    with pytest.raises(SupervisionError, match="in use by"):
        refused.spawn_procs().spawn("echo", Echo).echo.call_one(1).get(timeout=SECONDS)
    assert not all_gone(pids)

    taken = attach(ipc, takeover=True)
    assert taken.initialized.get(timeout=SECONDS) is True
    assert taken.spawn_procs().spawn("echo", Echo).echo.call(1).get(timeout=SECONDS).values() == [1]
    wait_for(lambda: all_gone(pids))
    assert "its client has left" in first.line("lost")


def test_a_host_that_is_not_there_is_named_with_what_to_do(url: str, faults: Any) -> None:
    with configured(attach_timeout_seconds=0.2):
        hosts = attach(url)
        before = time.monotonic()
        with pytest.raises(HostUnreachable) as caught:
            hosts.initialized.get(timeout=SECONDS)
        assert time.monotonic() - before < 5
        with pytest.raises(SupervisionError, match="no host agent answered"):
            hosts.spawn_procs().spawn("echo", Echo).echo.call_one(1).get(timeout=SECONDS)
    text = str(caught.value)
    assert url in text
    assert "0.2 s" in text
    assert f"monarch host --address {url}" in text
    assert (caught.value.url, caught.value.waited_seconds) == (url, 0.2)


def test_calls_made_before_a_host_turns_out_to_be_absent_fail(url: str, faults: Any) -> None:
    with configured(attach_timeout_seconds=0.2):
        answer = attach(url).spawn_procs().spawn("echo", Echo).echo.call_one(1)
        with pytest.raises(SupervisionError, match="no host agent answered at"):
            answer.get(timeout=SECONDS)


def test_a_host_agent_that_dies_fails_the_calls_quickly_and_by_name(
    serve: Any, url: str, faults: list[MeshFailure]
) -> None:
    agent = serve(url)
    procs = attach(url).spawn_procs({"gpus": 2}, name="workers")
    echo = procs.spawn("echo", Echo)
    pids = echo.pid.call().get(timeout=SECONDS).values()
    waiting = echo.wait_for_file.call("/never")
    before = time.monotonic()
    agent.send_signal(signal.SIGKILL)
    with pytest.raises(SupervisionError) as caught:
        waiting.get(timeout=SECONDS)
    assert time.monotonic() - before < 3
    assert url in str(caught.value)
    wait_for(lambda: all_gone(pids), 3.0)
    # One cause, one report.
    (fault,) = wait_for(lambda: list(faults))
    assert (fault.mesh_name, fault.crashed_ranks) == ("workers", (0, 1))
    with pytest.raises(SupervisionError, match="host"):
        echo.echo.call(1).get(timeout=SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("who", ["agent", "client"])
def test_a_peer_that_hangs_is_lost_when_its_heartbeats_are_missed(
    program: Start, ipc: str, who: str
) -> None:
    # Long enough for one that is only busy.
    quick = {"MONARCH_HEARTBEAT_SECONDS": "0.1", "MONARCH_HEARTBEAT_TIMEOUT_SECONDS": "3.0"}
    agent = program(SERVE.format(url=ipc), **quick)
    client = program(
        # On one machine the other's process is watched instead: make it look like two.
        "import monarch.runtime.node\nmonarch.runtime.node.machine_id = lambda: 'elsewhere'\n"
        + CLIENT.format(url=ipc)
        + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
try:
    echo.wait_for_file.call("/never").get()
except SupervisionError as error:
    print("lost", str(error).replace(chr(10), " "), flush=True)
os._exit(0)
""",
        **quick,
    )
    pids = pids_of(client)
    if who == "agent":
        agent.send_signal(signal.SIGSTOP)
        assert "nothing was heard of it for" in client.line("lost")
    else:
        client.send_signal(signal.SIGSTOP)
        wait_for(lambda: all_gone(pids))
        assert is_running(agent.pid)


def test_a_host_agent_that_came_back_can_be_attached_to_again(
    serve: Any, ipc: str, faults: Any
) -> None:
    first = serve(ipc)
    old = attach(ipc).spawn_procs().spawn("echo", Echo)
    old.echo.call(1).get(timeout=SECONDS)
    first.send_signal(signal.SIGKILL)
    with pytest.raises(SupervisionError):
        old.wait_for_file.call("/never").get(timeout=SECONDS)
    serve(ipc)
    again = attach(ipc).spawn_procs().spawn("echo", Echo)
    assert again.echo.call(1).get(timeout=SECONDS).values() == [1]


def test_the_death_of_an_attached_client_ends_its_procs_and_frees_the_host(
    program: Start, serve: Any, url: str
) -> None:
    agent = serve(url)
    first = program(CLIENT.format(url=url) + "threading.Event().wait()")
    pids = pids_of(first)
    first.send_signal(signal.SIGKILL)
    wait_for(lambda: all_gone(pids), 2.0)
    hosts = attach(url)
    assert hosts.spawn_procs().spawn("echo", Echo).echo.call(1).get(timeout=SECONDS).values() == [1]
    assert is_running(agent.pid)


def test_a_proc_on_a_host_that_dies_is_reported_with_its_host(
    serve: Any, ipc: str, faults: list[MeshFailure]
) -> None:
    serve(ipc)
    echo = attach(ipc).spawn_procs({"gpus": 2}, name="workers").spawn("echo", Echo)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        echo.slice(gpus=1).kill.call_one().get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert (fault.mesh_name, fault.crashed_ranks) == ("workers", (1,))
    # A machine may have several.
    assert fault.host == f"{socket.gethostname()}:{os.path.basename(ipc)}"


def test_stopping_leaves_the_agent_and_shutting_down_ends_it(serve: Any, ipc: str) -> None:
    agent = serve(ipc)
    hosts = attach(ipc)
    echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
    pids = echo.pid.call().get(timeout=SECONDS).values()
    hosts.stop().get(timeout=SECONDS)
    assert all_gone(pids)
    assert is_running(agent.pid)
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        hosts.slice(hosts=0).shutdown()
    hosts.shutdown().get(timeout=SECONDS)
    assert agent.wait() == 0
    assert agent.errors == []
    with pytest.raises(RuntimeError, match="already been shut down"):
        hosts.spawn_procs()
    with pytest.raises(RuntimeError, match="already been shut down"):
        hosts.shutdown()


def test_shutting_down_with_procs_running_is_no_failure(
    serve: Any, ipc: str, faults: list[MeshFailure]
) -> None:
    agent = serve(ipc)
    hosts = attach(ipc)
    echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
    pids = echo.pid.call().get(timeout=SECONDS).values()
    hosts.shutdown().get(timeout=SECONDS)
    assert agent.wait() == 0
    wait_for(lambda: all_gone(pids))
    with pytest.raises(SupervisionError):
        echo.echo.call(1).get(timeout=SECONDS)
    assert not faults


def test_sigterm_ends_an_agent_and_its_procs(serve: Any, ipc: str, folder: Path) -> None:
    agent = serve(ipc)
    echo = attach(ipc).spawn_procs({"gpus": 2}).spawn("echo", Echo)
    pids = echo.pid.call().get(timeout=SECONDS).values()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    wait_for(lambda: all_gone(pids))
    assert os.listdir(folder) == []


# A signal comes at each step of the first one's handler, wherever that is in its code.
TERMINATED_AGAIN = """
import signal, sys
install = signal.signal
handling = False

def again(frame, event, argument):
    if handling:
        signal.raise_signal(signal.SIGTERM)
    return again

def wrapped(handler):
    def handle(*about):
        global handling
        if handling:
            return handler(*about)
        handling = True
        sys.settrace(again)
        try:
            handler(*about)
        finally:
            sys.settrace(None)
            handling = False
    return handle

signal.signal = lambda number, handler: install(
    number, wrapped(handler) if number == signal.SIGTERM and callable(handler) else handler
)
from monarch.runtime.entry.host_main import serve_host
serve_host({url!r})
print("ended", flush=True)
"""


def test_a_second_sigterm_while_the_first_is_handled_ends_an_agent_too(
    program: Start, ipc: str, folder: Path
) -> None:
    agent = program(TERMINATED_AGAIN.format(url=ipc))
    wait_for((folder / "host").exists, what="the agent to listen")
    agent.send_signal(signal.SIGTERM)
    agent.line("ended", SECONDS)
    assert agent.wait() == 0


def test_an_agent_at_an_address_in_use_says_so(serve: Any, url: str) -> None:
    serve(url)
    attach(url).initialized.get(timeout=SECONDS)
    second = serve(url)
    assert second.wait() == 1
    assert "in use" in second.errors[-1]
    assert attach(url).spawn_procs().spawn("e", Echo).echo.call(1).get(
        timeout=SECONDS
    ).values() == [1]


def test_beyond_loopback_an_agent_wants_a_secret(serve: Any) -> None:
    agent = serve(f"tcp://0.0.0.0:{free_port()}")
    assert agent.wait() == 1
    assert "without a job secret" in agent.errors[-1]


def test_with_a_secret_only_those_who_have_it_come_in(program: Start, faults: Any) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    secret = bytes(range(32))
    agent = program(SERVE.format(url=url), MONARCH_JOB_SECRET=secret.hex())
    with configured(attach_timeout_seconds=1.0), pytest.raises(HostUnreachable):
        attach(url).initialized.get(timeout=SECONDS)
    shutdown_context().get(timeout=SECONDS)
    hosts = attach(url, secret=secret)
    echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
    assert echo.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    assert echo.environment.call("MONARCH_JOB_SECRET").get().values() == [None, None]
    shutdown_context().get(timeout=SECONDS)
    assert is_running(agent.pid)


def test_a_port_scan_of_an_agent_changes_nothing(serve: Any) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    agent = serve(url)
    hosts = attach(url)
    hosts.initialized.get(timeout=SECONDS)

    def is_logged() -> bool:
        # One that came and went once may have been a peer that was killed.
        scan_port(url, b"GET / HTTP/1.1\r\n\r\n")
        return bool(agent.errors)

    wait_for(is_logged)
    assert hosts.spawn_procs().spawn("e", Echo).echo.call(1).get(timeout=SECONDS).values() == [1]
    assert len(agent.errors) == 1, agent.errors
    assert agent.errors[0].startswith("turned away ")


def test_garbage_from_a_peer_is_dropped(serve: Any, ipc: str) -> None:
    agent = serve(ipc)
    hosts = attach(ipc)
    hosts.initialized.get(timeout=SECONDS)
    no_messages = ([b""], [b"a", b"b", b"c"], [b"\xff"] * 5, [b"", b"\x01\x93\x02", b""])
    for data in (*(frame(frames)[0] for frames in no_messages), b"\xff" * 100, b"GET / HTTP/1.1"):
        with socket.socket(socket.AF_UNIX) as out:
            out.connect(ipc.removeprefix("ipc://"))
            out.sendall(bytes(data))
    assert hosts.spawn_procs().spawn("e", Echo).echo.call(1).get(timeout=SECONDS).values() == [1]
    assert is_running(agent.pid)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("ending", ["", "procs.stop().get()", "raise SystemExit(0)"])
def test_what_distant_procs_print_last_arrives(program: Start, url: str, ending: str) -> None:
    program(SERVE.format(url=url))
    client = program(PRINTS.format(url=url, ending=ending))
    assert client.wait(60) == 0
    for rank in range(2):
        mine = [line for line in client.lines if line.startswith(f"[echo {rank}]")]
        assert mine == [f"[echo {rank}] line {number}" for number in range(300)]


SLOW_DISK = """
import time
from monarch.runtime.output.log_sender import LogSender
write_down = LogSender._on_lines
def slowly(sender, *about):
    time.sleep(0.5)
    write_down(sender, *about)
LogSender._on_lines = slowly
"""

LAST_WORDS = """
class Talker(Actor):
    def __cleanup__(self, error):
        print("bye", flush=True)
talkers = procs.spawn("talker", Talker)
talkers.initialized.get(timeout=30)
"""


@pytest.mark.long
def test_last_words_arrive_however_long_it_takes_to_write_them_down(
    program: Start, ipc: str
) -> None:
    program(SLOW_DISK + SERVE.format(url=ipc))
    client = program(CLIENT.format(url=ipc) + LAST_WORDS)
    assert client.wait(60) == 0
    assert {f"[talker {rank}] bye" for rank in range(2)} <= set(client.lines)


def test_distant_procs_are_aggregated_and_silenced(program: Start, ipc: str) -> None:
    program(SERVE.format(url=ipc))
    client = program(
        CLIENT.format(url=ipc)
        + """
import asyncio
async def main():
    await procs.logging_option(aggregate_window_sec=600)
    await echo.print.call("gathered")
    await procs.slice(gpus=0).logging_option(stream_to_client=False)
    await echo.print.call("half of it")
    await procs.stop()
asyncio.run(main())
"""
    )
    assert client.wait(60) == 0
    assert [line for line in client.lines if "similar" in line] == [
        "[2 similar log lines] [echo 0-1] gathered",
        "[1 similar log lines] [echo 1] half of it",
    ]
