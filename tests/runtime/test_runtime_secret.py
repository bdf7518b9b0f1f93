"""Where the secret of a job may be seen: in its state file, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from monarch.actor import attach_to_workers, run_worker_loop_forever
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.tools.network import free_port
from monarch.wire.address import ProcAddress
from monarch.wire.keys import JobKeys
from tests.support import Program, wait_for

Start = Callable[..., Program]

SECRET = bytes(range(50, 82))
SECONDS = 60.0

SERVE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address={url!r})
"""

CLIENT = """
import os, sys, logging
logging.basicConfig(level=logging.DEBUG)
from monarch.actor import *
import monarch.actor
from tests.actors import *
def hook(failure):
    print("fault", failure.report().replace("\\n", " "), flush=True)
monarch.actor.unhandled_fault_hook = hook
procs = attach_to_workers(workers=[{url!r}]).spawn_procs({{"gpus": 2}}, name="workers")
echo = procs.spawn("echo", Echo)
print("pids", *echo.pid.call().get(timeout=30).values(), flush=True)
try:
    echo.no_such_thing.call().get(timeout=30)
except Exception as error:
    print("error", repr(error).replace("\\n", " "), flush=True)
print(repr(context()), flush=True)
import threading; threading.Event().wait()
"""


def shown_by(pid: int) -> bytes:
    """What the kernel shows of a process to anybody of the same user."""
    shown = b""
    for name in ("cmdline", "environ"):
        try:
            shown += Path(f"/proc/{pid}/{name}").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            pass
    return shown


def traces() -> list[bytes]:
    """The secret and what is derived from it, in the spellings that could slip out."""
    keys = JobKeys(SECRET)
    return [
        SECRET.hex().encode(),
        SECRET,
        repr(SECRET).encode(),
        keys.listener.private,
        keys.connector.private,
    ]


def test_no_process_of_a_run_shows_the_secret(program: Start) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    variables = {"MONARCH_JOB_SECRET": SECRET.hex()}
    agent = program(SERVE.format(url=url), **variables)
    client = program(CLIENT.format(url=url), **variables)
    pids = [int(pid) for pid in client.line("pids", 60).split()]
    client.line("error")
    family = {agent.pid, client.pid, *pids}
    for top in (agent.pid, client.pid):
        family |= {child.pid for child in psutil.Process(top).children(recursive=True)}
    shown = [text for text in map(shown_by, family) if text]
    assert len(shown) >= 5, "an agent, a client, a template and two procs"
    assert not [trace for trace in traces() for text in shown if trace in text]
    # A proc that is killed is reported, with its last words.
    os.kill(pids[0], 9)
    client.line("fault")
    said = "\n".join([*client.lines, *client.errors, *agent.lines, *agent.errors]).encode()
    assert not [trace for trace in traces() if trace in said]


@pytest.mark.long_but(1)
@pytest.mark.parametrize("text", ["ab" * 31, "no secret at all", "xy" * 32])
def test_a_secret_that_is_none_is_refused_without_being_shown(program: Start, text: str) -> None:
    agent = program(SERVE.format(url="tcp://127.0.0.1:1"), MONARCH_JOB_SECRET=text)
    assert agent.wait() == 1
    assert "64 hexadecimal digits" in agent.errors[-1]
    assert text not in agent.story()


def test_what_a_proc_is_told_at_birth_does_not_print_the_secret() -> None:
    here = ProcAddress("p")
    config = ProcConfig(
        uid="p",
        mesh="m",
        name="trainer",
        rank=3,
        labels=(),
        sizes=(),
        owner=here,
        owner_actor="",
        host=here,
        listen=(),
        secret=SECRET.hex(),
    )
    for shown in (repr(config), str(config), f"{[config]}"):
        assert SECRET.hex() not in shown
    # It still gets it.
    assert SECRET.hex().encode() in msgspec.json.encode(config)


def test_trusting_all_connections_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="is ignored"), pytest.raises(ValueError, match="address"):
        run_worker_loop_forever(ca="trust_all_connections", address="nowhere")
    with pytest.warns(UserWarning, match="is ignored"), pytest.raises(ValueError, match="address"):
        attach_to_workers(ca="trust_all_connections", workers=["nowhere"])


INSECURE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address={url!r}, insecure=True)
"""

INSECURE_CLIENT = """
from monarch.actor import *
from tests.actors import *
hosts = attach_to_workers(workers=[{url!r}], insecure={insecure})
print("answer", hosts.spawn_procs().spawn("e", Echo).echo.call_one(5).get(timeout=30), flush=True)
"""


def test_without_a_secret_only_an_explicit_word_opens_a_port_and_warns(program: Start) -> None:
    port = free_port()
    bind, reach = f"tcp://0.0.0.0:{port}", f"tcp://{own_address()}:{port}"
    agent = program(INSECURE.format(url=f"{reach}@{bind}"))
    refused = program(INSECURE_CLIENT.format(url=reach, insecure=False))
    assert refused.wait() == 1
    assert "without a job secret" in refused.errors[-1]
    client = program(INSECURE_CLIENT.format(url=reach, insecure=True))
    assert client.line("answer") == "5"
    assert client.wait() == 0
    for side in (agent, client):
        wait_for(lambda side=side: side.errors, what="a warning")
        assert "whoever can reach the port" in side.errors[0]


def own_address() -> str:
    """An address of this machine that is not loopback; or the test has nothing to try."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    pytest.skip("this machine has only loopback")
