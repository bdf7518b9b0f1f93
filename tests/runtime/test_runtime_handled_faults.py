"""A failure that the program has heard of by the error of a call is the program's to handle."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Program, wait_for

Start = Callable[..., Program]

SETUP = """
import os, sys, signal, time, threading, asyncio, contextlib
import monarch.actor
from monarch.actor import *
from tests.actors import *
procs = this_host().spawn_procs({"gpus": 2}, name="workers")
echo = procs.spawn("echo", Echo)
echo.pid.call().get()
"""


def said(run: Program) -> list[str]:
    """What the program itself has printed, without what its procs have."""
    return [line for line in run.lines if not line.startswith(("[echo ", "[mine "))]


BAD = """
class Bad(Actor):
    def __init__(self): raise ValueError("no")
    @endpoint
    def step(self): ...
"""

CAUGHT = {
    "a call": "try: echo.slice(gpus=1).kill.call_one().get()\n"
    "except SupervisionError: print('caught')",
    "a call of many": "try: echo.kill.call().get()\nexcept SupervisionError: print('caught')",
    "by its plain base": "try: echo.kill.call().get()\nexcept Exception: print('caught')",
    "awaited": """
async def main():
    try: await echo.kill.call()
    except SupervisionError: print('caught')
asyncio.run(main())
""",
    "after a broadcast": """
echo.kill.broadcast()
time.sleep(0.1)
try: echo.echo.call(1).get()
except SupervisionError: print('caught')
""",
    "of a constructor": f"""{BAD}
bad = procs.spawn("bad", Bad)
try: bad.step.call().get()
except SupervisionError as error: print('caught' if "no" in str(error) else error)
""",
    "of what was to come up": f"""{BAD}
bad = procs.spawn("bad", Bad)
try: bad.initialized.get()
except SupervisionError as error: print('caught')
""",
    "one by one": """
for future in echo.kill.stream():
    with contextlib.suppress(SupervisionError): future.get()
print('caught')
""",
    "of an owner that did not handle its part": """
class Owner(Actor):
    @endpoint
    def begin(self): self.mine = this_host().spawn_procs().spawn("mine", Echo)
    @endpoint
    def kill(self): self.mine.kill.broadcast()
    @endpoint
    def nothing(self): ...
owner = procs.slice(gpus=0).spawn("owner", Owner)
owner.begin.call_one().get()
owner.kill.call_one().get()
try:
    while True: owner.nothing.call_one().get()
except SupervisionError as error: print('caught')
""",
}


@pytest.mark.long_but(1)
@pytest.mark.parametrize("caught", CAUGHT.values(), ids=list(CAUGHT))
def test_who_catches_the_error_goes_on(program: Start, caught: str) -> None:
    # Longer than it runs: at its end, too, a failure that it has not heard of ends it by status 1.
    run = program(
        f"{SETUP}{caught}\ntime.sleep(1.0)\n"
        "fresh = this_host().spawn_procs().spawn('fresh', Echo)\n"
        "print('went on', fresh.echo.call_one(7).get())",
        MONARCH_FAULT_PATIENCE_SECONDS="60",
    )
    assert run.wait() == 0, run.story()
    assert said(run) == ["caught", "went on 7"]
    assert run.errors == []


@pytest.mark.long
def test_a_later_failure_is_another_one(program: Start) -> None:
    run = program(
        SETUP + CAUGHT["a call"] + "\necho.slice(gpus=0).kill.broadcast()\ntime.sleep(60)",
        MONARCH_FAULT_PATIENCE_SECONDS="2.0",
    )
    assert run.wait() == 1, run.story()
    assert said(run) == ["caught"]


@pytest.mark.long
def test_an_error_that_an_actor_has_caught_is_not_the_roots(program: Start) -> None:
    run = program(
        SETUP
        + """
class Caller(Actor):
    @endpoint
    def call(self, echo):
        try: echo.kill.call().get()
        except SupervisionError: return "caught"
caller = this_host().spawn_procs().spawn("caller", Caller)
print(caller.call.call_one(echo).get(), flush=True)
time.sleep(60)
""",
        MONARCH_FAULT_PATIENCE_SECONDS="2.0",
    )
    assert run.wait() == 1, run.story()
    assert said(run) == ["caught"]


def test_a_hook_of_ones_own_is_asked_whoever_catches_the_error(program: Start) -> None:
    run = program(
        SETUP
        + """
told = threading.Event()
monarch.actor.unhandled_fault_hook = lambda failure: told.set()
"""
        + CAUGHT["a call"]
        + "\nprint('told', told.wait(20))"
    )
    assert run.wait() == 0, run.story()
    assert said(run) == ["caught", "told True"]


@pytest.mark.long
def test_the_report_names_what_can_be_done_and_there_is_no_traceback(program: Start) -> None:
    script = SETUP + "echo.kill.broadcast()\ntry: time.sleep(60)\nfinally: print('cleaned up')"
    run = program(script, MONARCH_FAULT_PATIENCE_SECONDS="0.1")
    assert run.wait() == 1, run.story()
    text = "\n".join(run.errors)
    for remedy in (
        "catch\nSupervisionError",
        "__supervise__",
        "monarch.actor.unhandled_fault_hook",
    ):
        assert remedy in text
    assert "Traceback" not in text
    assert "KeyboardInterrupt" not in text
    assert "cleaned up" in run.lines


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(60)",
        "threading.Event().wait(60)",
        "Channel.open()[1].recv().get()",
        "asyncio.run(asyncio.sleep(60))",
        "subprocess.run(['sleep', '60'])",
    ],
)
def test_a_fault_ends_a_program_that_ignores_sigint(program: Start, wait: str) -> None:
    """As all do that a script has started in the background."""
    ignore = "import signal, subprocess, atexit\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script = f"{ignore}atexit.register(print, 'the handler ran')\n{SETUP}"
    run = program(
        f"{script}echo.kill.broadcast()\n{wait}\nprint('went on')",
        MONARCH_FAULT_PATIENCE_SECONDS="0.1",
    )
    assert run.wait() == 1, run.story()
    assert said(run) == ["the handler ran"]
    assert "\n".join(run.errors).count("Unhandled monarch error") == 1


def test_a_client_of_a_thread_ends_by_a_fault_too(program: Start) -> None:
    run = program(
        """
import signal, threading, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
def begin():
    from monarch.actor import this_host
    from tests.actors import Echo
    this_host().spawn_procs().spawn("echo", Echo).kill.broadcast()
threading.Thread(target=begin).start()
time.sleep(60)
""",
        MONARCH_FAULT_PATIENCE_SECONDS="0.1",
    )
    assert run.wait() == 1, run.story()
    assert "Unhandled monarch error" in "\n".join(run.errors)


WORKERS = """
import subprocess, sys, time
from monarch.actor import *
from tests.actors import Echo
urls = [f"ipc://{folder}/{n}" for n in range(2)]
code = "import sys; from monarch.actor import run_worker_loop_forever as w; w(address=sys.argv[1])"
workers = [subprocess.Popen([sys.executable, "-c", code, url]) for url in urls]
hosts = attach_to_workers(workers=urls)
echo = hosts.spawn_procs().spawn("echo", Echo)
print(list(echo.echo.call(3).get().values()), flush=True)
for worker in workers:
    worker.kill()
    worker.wait()
"""


def test_workers_of_ones_own_may_be_killed_at_the_end(program: Start, tmp_path: object) -> None:
    run = program(f"folder = {str(tmp_path)!r}\n{WORKERS}")
    assert run.wait() == 0, run.story()
    assert said(run) == ["[3, 3]"]
    assert run.errors == []


@pytest.mark.long
def test_workers_of_ones_own_that_end_are_told_and_end_nothing(
    program: Start, tmp_path: Path
) -> None:
    after = """
import os
while not os.path.exists(f"{folder}/told"): time.sleep(0.01)
try: echo.echo.call(4).get()
except SupervisionError: print('caught')
"""
    run = program(
        f"folder = {str(tmp_path)!r}\n{WORKERS}{after}", MONARCH_FAULT_PATIENCE_SECONDS="0.1"
    )
    told = "a host that this program had started itself has ended"
    wait_for(lambda: told in "\n".join(run.errors), what=told)
    (tmp_path / "told").touch()
    assert run.wait() == 0, run.story()
    assert said(run) == ["[3, 3]", "caught"]


def test_another_programs_host_that_is_lost_ends_this_one(program: Start, tmp_path: object) -> None:
    url = f"ipc://{tmp_path}/host"
    agent = program(f"from monarch.actor import run_worker_loop_forever as w; w(address={url!r})")
    run = program(
        f"""
import time
from monarch.actor import *
from tests.actors import Echo
echo = attach_to_workers(workers=[{url!r}]).spawn_procs().spawn("echo", Echo)
print(echo.echo.call(3).get().item(hosts=0), flush=True)
time.sleep(60)
""",
        MONARCH_FAULT_PATIENCE_SECONDS="0.1",
    )
    run.line("3")
    agent.process.send_signal(signal.SIGKILL)
    assert run.wait() == 1, run.story()
    assert "Unhandled monarch error" in "\n".join(run.errors)
