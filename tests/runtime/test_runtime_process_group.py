"""Signals reach those that they are for, and nobody who has got the number of a dead process."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from monarch.runtime.ends import process_start as process_start_module
from monarch.runtime.ends.process_group import end_child, kill_lost_group, signal_process
from monarch.runtime.ends.process_start import is_ours, process_start
from monarch.runtime.ends.stacks import ask_for_stacks
from monarch.runtime.entry import zygote
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import ProcSpec, SpawnProcs
from tests.runtime.lone_agent import LoneAgent
from tests.support import Program, wait_for


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session and group of its own, as procs and host agents have."""
    one = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    wait_for(lambda: os.getpgid(one.pid) == one.pid)
    yield one
    one.kill()
    one.wait()


def start_of(one: subprocess.Popen[bytes]) -> int:
    started = process_start(one.pid)
    assert started is not None
    return started


def test_a_stranger_with_the_number_of_a_dead_process_lives_on(
    stranger: subprocess.Popen[bytes], tmp_path: object
) -> None:
    earlier = start_of(stranger) - 1
    stacks = f"{tmp_path}/stacks"
    open(stacks, "w").close()
    signal_process(stranger.pid, earlier, signal.SIGKILL)
    kill_lost_group(stranger.pid, earlier)
    ask_for_stacks(stranger.pid, earlier, stacks)
    os.kill(stranger.pid, signal.SIGSTOP)  # What came before has been done by the time it stops.
    wait_for(lambda: os.waitid(os.P_PID, stranger.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    assert stranger.poll() is None


def test_without_proc_a_clock_that_is_set_makes_no_stranger_of_a_process(
    stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Such a ps works the start out from when the machine was booted, by the clock as it is now.
    ps = tmp_path / "ps"
    ps.write_text(
        "#!/bin/sh\n"
        'case "$*" in *lstart*) echo "S $(cat "$0.start")";; *) exec /bin/ps "$@";; esac\n'
    )
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(process_start_module, "_PROC", False)
    told = tmp_path / "ps.start"
    told.write_text("Thu Nov 26 20:04:09 2026")
    started = start_of(stranger)
    told.write_text("Thu Nov 26 20:04:10 2026")
    assert is_ours(stranger.pid, started, "sleep")
    told.write_text("Thu Nov 26 20:05:10 2026")
    assert not is_ours(stranger.pid, started, "sleep")


@pytest.mark.parametrize("end", ["signal_process", "kill_lost_group"])
def test_the_process_itself_is_reached(stranger: subprocess.Popen[bytes], end: str) -> None:
    if end == "signal_process":
        signal_process(stranger.pid, start_of(stranger), signal.SIGKILL)
    else:
        kill_lost_group(stranger.pid, start_of(stranger))
    assert stranger.wait(20) == -signal.SIGKILL


def test_what_a_dead_process_has_left_behind_is_reached() -> None:
    left = Program.of_script("""
        import subprocess, sys
        child = subprocess.Popen(["sleep", "1000"], stdout=sys.stderr)
        print("child", child.pid, flush=True)
    """)
    child = int(left.line("child"))
    started = process_start(child)
    assert left.process.wait(20) == 0
    left.close()
    wait_for(lambda: process_start(child) != started, what="its child ends")


def test_signals_to_those_that_have_ended_go_nowhere() -> None:
    one = subprocess.Popen(["true"])
    started = process_start(one.pid, even_ended=True) or 0
    one.wait()
    signal_process(one.pid, started, signal.SIGKILL)
    kill_lost_group(one.pid, started)


@pytest.mark.parametrize("has_own_group", [True, False])
def test_a_child_that_will_not_end_is_ended_with_what_it_started(has_own_group: bool) -> None:
    deaf = "trap '' TERM; sleep 1000 & echo $!; wait; wait; wait"
    child = subprocess.Popen(
        ["sh", "-c", deaf], stdout=subprocess.PIPE, text=True, start_new_session=has_own_group
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    started = process_start(grandchild)
    end_child(child, 0.1)
    assert child.returncode == -signal.SIGKILL
    if has_own_group:
        wait_for(lambda: process_start(grandchild) != started, what="what it started ends")
    else:
        os.kill(grandchild, signal.SIGKILL)
    child.stdout.close()


def test_a_child_that_ends_when_asked_is_not_killed() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    end_child(child)
    assert child.returncode == -signal.SIGTERM


def test_the_end_of_a_template_ends_no_stranger(
    agent: LoneAgent, stranger: subprocess.Popen[bytes]
) -> None:
    order = SpawnProcs(
        mesh="m",
        name="mesh",
        owner=agent.peer.address,
        owner_actor="",
        labels=(),
        sizes=(),
        procs=(ProcSpec("proc", 0),),
    )
    earlier = start_of(stranger) - 1

    def lose() -> None:
        agent.node.dispatch(Envelope("", order))
        agent.agent._on_forked("proc", stranger.pid, earlier)
        agent.agent._on_exited("proc", None)

    agent.node.loop.run_on_loop(lose)
    os.kill(stranger.pid, signal.SIGSTOP)
    wait_for(lambda: os.waitid(os.P_PID, stranger.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    assert stranger.poll() is None


def test_a_template_that_cannot_fork_says_so_and_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    host, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    nobody = ProcAddress("nobody")
    config = ProcConfig(
        uid="proc",
        mesh="m",
        name="mesh",
        rank=0,
        labels=(),
        sizes=(),
        owner=nobody,
        owner_actor="",
        host=nobody,
        listen=(),
    )
    order = msgspec.json.encode({"op": "fork", "config": config})
    out, said = os.pipe()
    template = zygote._Zygote(theirs, zygote.TemplatePast({}), "")
    monkeypatch.setattr(zygote.os, "fork", fork)
    socket.send_fds(host, [order], [said, said])
    assert template._serve()
    os.close(said)
    told = msgspec.json.decode(host.recv(1000))
    assert told == {"event": "exited", "uid": "proc", "life": config.life, "code": 1}
    assert os.read(out, 1000) == b"no process could be made: Resource temporarily unavailable\n"
    for end in (template._wake_read, template._wake_write, out):
        os.close(end)
    host.close()
    theirs.close()
