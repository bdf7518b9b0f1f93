"""How programs end: quietly when all is well, with one report and status 1 when not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import Program, is_running, wait_for

Start = Callable[..., Program]

SETUP = """
import os, sys, signal, time, threading, asyncio
import monarch.actor
from monarch.actor import *
from tests.actors import *
procs = this_host().spawn_procs({"gpus": 2}, name="workers")
echo = procs.spawn("echo", Echo)
pids = echo.pid.call().get().values()
print("pids", *pids, flush=True)
"""


# How long a fault waits for somebody to hear of it is shown elsewhere.
SOON = {"MONARCH_FAULT_PATIENCE_SECONDS": "0.2"}


def start_with_procs(program: Start, script: str, **environment: str) -> tuple[Program, list[int]]:
    started = program(SETUP + script, **environment)
    pids = [int(pid) for pid in started.line("pids").split()]
    return started, pids + [child.pid for child in psutil.Process(started.pid).children()]


def all_gone(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("procs.stop().get()", 0),
        ("shutdown_context().get()", 0),
        ("import atexit; atexit.register(lambda: shutdown_context().get())", 0),
        ("procs.stop()", 0),
        ("echo.stop(); procs.stop(); shutdown_context()", 0),
        ("pending = echo.wait_for_file.call('/never')", 0),
        ("del echo, procs; import gc; gc.collect()", 0),
        ("async def main(): await echo.echo.call(1)\nasyncio.run(main())", 0),
        ("threading.Thread(target=lambda: echo.echo.call(1).get()).start()", 0),
        ("this_proc().spawn('async', Async).echo.call_one(1).get()", 0),
        ("this_host().spawn_procs({'gpus': 2}).spawn('early', Echo)", 0),
        ("for i in range(1000): echo.append.broadcast(i)", 0),
    ],
)
def test_a_normal_end_is_quiet_and_leaves_nobody(program: Start, ending: str, status: int) -> None:
    started, pids = start_with_procs(program, ending)
    assert started.wait() == status
    assert started.errors == []
    assert started.lines == [f"pids {pids[0]} {pids[1]}"]
    wait_for(lambda: all_gone(pids), 2.0)


def test_a_program_that_raises_shows_its_own_traceback_only(program: Start) -> None:
    started, pids = start_with_procs(program, "raise ValueError('mine')")
    assert started.wait() == 1, started.story()
    assert started.errors[0] == "Traceback (most recent call last):"
    assert started.errors[-1] == "ValueError: mine"
    assert len(started.errors) < 6
    wait_for(lambda: all_gone(pids), 2.0)


def test_an_unfinished_future_in_asyncio_is_quiet(program: Start) -> None:
    started, pids = start_with_procs(
        program,
        """
async def main():
    task = echo.wait_for_file.call("/never").as_asyncio()
    await asyncio.sleep(0)
asyncio.run(main())
""",
    )
    assert started.wait() == 0
    assert started.errors == []
    wait_for(lambda: all_gone(pids), 2.0)


def test_import_alone_starts_nothing(program: Start) -> None:
    started = program(
        "import monarch.actor, threading, sys\n"
        "print(threading.active_count(), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert started.wait() == 0
    assert started.lines == ["1 False False"]


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "wait",
    [
        "say()\necho.wait_for_file.call('/never').get()",
        "say()\necho.slice(gpus=0).wait_for_file.call_one('/never').get(timeout=60)",
        "say()\nChannel.open()[1].recv().get()",
        # Said inside: before the loop runs, Ctrl-C would meet a coroutine that nobody awaits.
        "async def main(): say(); await echo.wait_for_file.call('/never')\nasyncio.run(main())",
    ],
    ids=["get", "get with a timeout", "recv", "await"],
)
def test_ctrl_c_interrupts_at_once(program: Start, wait: str) -> None:
    said = "def say(): print('waiting', flush=True)\n"
    started, pids = start_with_procs(program, said + wait)
    started.line("waiting")
    started.send_signal(signal.SIGINT)
    before = time.monotonic()
    assert started.wait() in (1, 130, -signal.SIGINT)
    # The busy actors get their second to clean up.
    assert time.monotonic() - before < 4.0
    assert started.errors[-1].startswith("KeyboardInterrupt")
    wait_for(lambda: all_gone(pids), 2.0)


def test_ctrl_c_may_be_caught_and_all_goes_on(program: Start) -> None:
    started, _ = start_with_procs(
        program,
        """
future = echo.wait_for_file.call("/tmp")
future.get()
never = procs.spawn("other", Echo).wait_for_file.call("/never")
try:
    print("waiting", flush=True)
    never.get()
except KeyboardInterrupt:
    print("interrupted", echo.echo.call(1).get().values(), flush=True)
os._exit(0)
""",
    )
    started.line("waiting")
    started.send_signal(signal.SIGINT)
    assert started.line("interrupted") == "[1, 1]"
    assert started.wait() == 0


@pytest.mark.long_but(1)
@pytest.mark.parametrize("victim", ["client", "template"])
def test_sigkill_leaves_no_orphan(program: Start, victim: str) -> None:
    started, pids = start_with_procs(
        program,
        """
# A new Python: its children are counted.
class Starts(Actor):
    @endpoint
    def start(self):
        import subprocess
        return subprocess.Popen(["sleep", "1000"]).pid
print("more", *procs.spawn("starts", Starts).start.call().get().values(), flush=True)
monarch.actor.unhandled_fault_hook = lambda failure: None
threading.Event().wait()
""",
    )
    pids += [int(pid) for pid in started.line("more").split()]
    templates = psutil.Process(started.pid).children()
    assert len(templates) == 1
    os.kill(started.pid if victim == "client" else templates[0].pid, signal.SIGKILL)
    wait_for(lambda: all_gone(pids), 2.0, "all are gone within two seconds")


FAULTS = {
    "init": "procs.spawn('bad', BadInit, 0)",
    "broadcast": "echo.slice(gpus=0).fail.broadcast()",
    "process": "echo.slice(gpus=0).kill.broadcast()",
    "all processes": "echo.kill.broadcast()",
    "template": "import psutil; psutil.Process().children()[0].kill()  # A new Python has one",
}


WAITS = {
    "sleep": "time.sleep(60)",
    "event": "threading.Event().wait(60)",
    "recv": "Channel.open()[1].recv().get()",
    "await": "asyncio.run(asyncio.sleep(60))",
}


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("fault", "wait"),
    [*((fault, "sleep") for fault in FAULTS), *(("all processes", wait) for wait in WAITS)],
)
def test_an_unhandled_fault_ends_the_program_with_one_report(
    program: Start, fault: str, wait: str
) -> None:
    script = f"{FAULTS[fault]}\n{WAITS[wait]}\nprint('went on')"
    started, pids = start_with_procs(program, script, **SOON)
    assert started.wait() == 1, started.story()
    text = "\n".join(started.errors)
    assert text.count("Unhandled monarch error on the root actor, hostname=") == 1, text
    assert f"PID={started.pid} at time" in text
    assert "failed: " in text or "This occurred because the actor itself failed." in text
    assert "went on" not in started.lines
    assert "monarch-fault" not in text
    wait_for(lambda: all_gone(pids), 2.0)


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("before", "wait"),
    [
        ("import os, sys", "time.sleep(60)"),
        ("procs = this_host", "time.sleep(60)"),
        ("procs = this_host", "with contextlib.suppress(KeyboardInterrupt): time.sleep(60)"),
    ],
    ids=["of the program", "made after the import", "where the interrupt is caught"],
)
def test_exit_handlers_run_after_a_fault(program: Start, before: str, wait: str) -> None:
    early = "import atexit, contextlib; atexit.register(print, 'the handler ran')"
    script = SETUP.replace(before, f"{early}\n{before}")
    started = program(f"{script}\necho.kill.broadcast()\n{wait}", **SOON)
    assert started.wait() == 1, started.story()
    assert "the handler ran" in started.lines


def test_a_fault_is_told_while_the_last_thread_of_a_program_runs(program: Start) -> None:
    started, _ = start_with_procs(
        program,
        """
from monarch.runtime import process
told = threading.Event()
faults = process.current().faults
tell = faults.tell
faults.tell = lambda lost: (tell(lost), told.set())
def outlive():
    threading.main_thread().join()
    echo.kill.broadcast()
    told.wait(20)
threading.Thread(target=outlive).start()
""",
    )
    assert started.wait() == 1, started.story()
    text = "\n".join(started.errors)
    assert text.count("Unhandled monarch error on the root actor, hostname=") == 1, text
    assert "monarch-fault" not in text


def test_a_hook_that_returns_lets_the_program_go_on(program: Start) -> None:
    started, _ = start_with_procs(
        program,
        """
seen = threading.Event()
def hook(failure):
    print("hook", failure.mesh_name, failure.crashed_ranks, flush=True)
    seen.set()
monarch.actor.unhandled_fault_hook = hook
echo.slice(gpus=1).kill.broadcast()
assert seen.wait(20)
print("went on", flush=True)
""",
    )
    assert started.wait() == 0
    assert started.lines[-2:] == ["hook workers (1,)", "went on"] or "went on" in started.lines
    assert "hook workers (1,)" in started.lines
    assert started.errors == []


def test_a_hook_that_raises_ends_the_program(program: Start) -> None:
    started, _ = start_with_procs(
        program,
        """
def hook(failure):
    raise RuntimeError("the hook is broken")
monarch.actor.unhandled_fault_hook = hook
echo.slice(gpus=1).fail.broadcast()
time.sleep(60)
""",
    )
    assert started.wait() == 1, started.story()
    text = "\n".join(started.errors)
    assert "Unhandled monarch error on the root actor" in text
    assert "the hook is broken" in text


def test_a_fault_while_the_program_ends_is_quiet(program: Start) -> None:
    started, _ = start_with_procs(program, "echo.kill.broadcast()\nsys.exit(0)")
    status = started.wait()
    text = "\n".join(started.errors)
    assert (status, text) == (0, "") or (status == 1 and text.count("Unhandled") == 1), text


def test_a_forked_child_of_the_client_does_not_end_the_client(program: Start) -> None:
    started, _ = start_with_procs(
        program,
        """
import multiprocessing
def child():
    sys.exit(0)
worker = multiprocessing.get_context("fork").Process(target=child)
worker.start()
worker.join()
print("still", echo.echo.call(1).get().values(), flush=True)
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
print("again", echo.echo.call(1).get().values(), flush=True)
""",
    )
    assert started.wait() == 0, started.story()
    assert started.lines[-2:] == ["still [1, 1]", "again [1, 1]"]


@pytest.mark.long
def test_no_socket_directory_stays(program: Start, tmp_path: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o700)
        first = program(SETUP, MONARCH_RUNTIME_DIR=folder)
        assert first.wait() == 0
        assert os.listdir(folder) == []
        killed = program(SETUP + "threading.Event().wait()", MONARCH_RUNTIME_DIR=folder)
        killed.line("pids")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(os.listdir(folder)) == 1
        # The next one sweeps what the dead left.
        assert program(SETUP, MONARCH_RUNTIME_DIR=folder).wait() == 0
        assert os.listdir(folder) == []


def test_a_runtime_directory_that_others_can_enter_is_refused(program: Start) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        started = program(SETUP, MONARCH_RUNTIME_DIR=folder)
        assert started.wait() == 1, started.story()
        assert "must belong to you and be closed to others" in started.errors[-1]


def test_the_secret_of_a_client_does_not_reach_its_procs(program: Start) -> None:
    started = program(
        SETUP + 'print("seen", echo.environment.call("MONARCH_JOB_SECRET").get().values())',
        MONARCH_JOB_SECRET="ab" * 32,
    )
    assert "[None, None]" in started.line("seen")
    assert started.wait() == 0


STUCK_IMPORT = """
import os, sys
from monarch.actor import *
os.mkfifo("gate")
open("never_imported.py", "w").write("open('imports', 'w'); open('gate').read()")
sys.path.insert(0, os.getcwd())
os.environ["PYTHONPATH"] = os.getcwd()
stuck = this_host().spawn_procs({"gpus": 2}, name="stuck", preload=["never_imported"])
while not os.path.exists("imports"): pass
stuck.stop().get()
print("stopped", flush=True)
"""


@pytest.mark.long
def test_procs_whose_template_is_busy_importing_are_stopped_at_once(
    program: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = program(STUCK_IMPORT)
    started.line("stopped")
    assert started.wait() == 0, started.story()


def test_a_template_that_is_stopped_leaves_no_procs_behind_when_the_client_is_killed(
    program: Start,
) -> None:
    client, pids = start_with_procs(program, "time.sleep(300)")
    template = psutil.Process(pids[0]).ppid()
    os.kill(template, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(template).status() == psutil.STATUS_STOPPED)
    client.process.kill()
    wait_for(lambda: all_gone([*pids, template]), 10, what="the procs and their template to end")
