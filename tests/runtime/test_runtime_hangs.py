"""Procs that live but do not answer: noticed, named, and not taken for dead."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.runtime.ends.stacks import innermost_of_users
from tests.support import Program, wait_for

Start = Callable[..., Program]

QUICK = {"MONARCH_HANG_TIMEOUT_SECONDS": "1.0"}

SCRIPT = """
import ctypes
from monarch.actor import Actor, endpoint, this_host
from monarch.runtime import process
from tests.actors import Echo

class Holds(Actor):
    @endpoint
    def hold(self, path):
        # A C function that is called so keeps the GIL.
        libc = ctypes.PyDLL(None)
        while libc.access(path.encode(), 0):
            libc.sleep(2)
        return "done"

procs = this_host().spawn_procs({"gpus": 2}, name="workers")
echo = procs.spawn("echo", Echo)
holds = procs.spawn("holds", Holds)
holds.initialized.get(timeout=30)
print("pids", *echo.pid.call().get(timeout=30).values(), flush=True)

def told():
    return [proc.hangs for proc in process.current().host_agent.describe().procs]
"""


def errors_with(client: Program, text: str) -> list[str]:
    return [line for line in client.errors if text in line]


@pytest.mark.long
def test_a_stopped_proc_is_named_so_and_its_call_waits_until_it_goes_on(program: Start) -> None:
    client = program(
        SCRIPT
        + """
import os, signal
pid = echo.slice(gpus=1).pid.call_one().get()
os.kill(pid, signal.SIGSTOP)
pending = echo.slice(gpus=1).echo.call_one("done")
print("told", flush=True)
from tests.support import wait_for
# On a busy machine others may be slow to answer, too.
print("inspect", wait_for(lambda: [t for t in told() if "is stopped" in t]), flush=True)
print("others", echo.slice(gpus=0).echo.call_one("fine").get(timeout=30), flush=True)
os.kill(pid, signal.SIGCONT)
print("answer", pending.get(timeout=30), flush=True)
wait_for(lambda: not any(told()))
import threading
threading.Event().wait()
""",
        **QUICK,
    )
    pid = client.line("pids").split()[1]
    client.line("inspect")
    assert client.line("others") == "fine"
    assert client.line("answer") == "done"
    wait_for(lambda: errors_with(client, " 1 answers again"))
    line = errors_with(client, f"1 (pid {pid}) has not answered")[-1]
    assert f"kill -CONT {pid}" in line


@pytest.mark.long
def test_a_proc_that_holds_the_gil_is_named_with_the_place_and_lives(
    program: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    client = program(
        SCRIPT
        + f"""
pending = holds.slice(gpus=0).hold.call_one({str(go)!r})
print("answer", pending.get(timeout=60), flush=True)
print("after", echo.echo.call("fine").get(timeout=30).values(), flush=True)
""",
        **QUICK,
    )
    # On a busy machine others may be slow to answer, too.
    wait_for(lambda: errors_with(client, "in hold"))
    go.touch()
    assert client.line("answer") == "done"
    assert client.line("after") == "['fine', 'fine']"
    assert client.wait() == 0
    assert "alive but hangs holding the GIL" in errors_with(client, "in hold")[0]


@pytest.mark.long
def test_a_proc_that_is_killed_while_it_is_stopped_is_dead(program: Start) -> None:
    client = program(
        SCRIPT
        + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
pending = echo.slice(gpus=1).echo.call_one("done")
pending.get(timeout=30)
print("ready", flush=True)
try:
    echo.slice(gpus=1).wait_for_file.call_one("/never").get(timeout=60)
except Exception as error:
    print("error", type(error).__name__, flush=True)
""",
        **QUICK,
    )
    pid = int(client.line("pids").split()[1])
    client.line("ready")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: errors_with(client, f"(pid {pid}) has not answered"))
    os.kill(pid, signal.SIGKILL)
    assert client.line("error") == "SupervisionError"
    assert client.wait() == 0


STACKS = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3/threading.py", line 10 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "{ours}", line 5 in put
  File "/home/me/train.py", line 7 in step
  File "{ours}", line 9 in _call
"""


def test_the_innermost_frame_of_the_users_own_code_is_found() -> None:
    import threading

    import monarch.runtime.ends.stacks as ours

    text = STACKS.format(ours=ours.__file__).replace(
        "/usr/lib/python3/threading.py", threading.__file__
    )
    assert innermost_of_users(text) == "/home/me/train.py, line 7 in step"
    assert innermost_of_users("") == ""
