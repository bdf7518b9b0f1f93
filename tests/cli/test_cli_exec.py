"""What a person runs on the hosts: commands, terminals, ports; and what they left there."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monarch.cli.hosts.host_logs import since_time
from monarch.job import job_load
from tests.cli.command_folder import CommandFolder
from tests.cli.on_terminal import on_terminal
from tests.support import wait_for

PROJECT = """
[job]
hosts = { trainers = 2, evals = 1 }
"""
MAIN = [sys.executable, "-m", "monarch.cli.main"]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandFolder]:
    """A folder whose allocation is up: three hosts in two meshes."""
    folder = CommandFolder(tmp_path_factory.mktemp("exec"))
    folder.write("monarch.toml", PROJECT)
    folder.monarch("apply")
    yield folder
    job_load(folder.path / ".monarch/job_state.json").kill()


@pytest.fixture
def mark() -> str:
    return f"mark-{uuid.uuid4().hex}"


def marked(mark: str) -> list[psutil.Process]:
    """What runs on the hosts with this among its arguments; not the command itself."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if mark in words and "exec" not in words and not any("guard.py" in one for one in words):
            found.append(process)
    return found


def test_one_rank_s_output_is_passed_on_byte_by_byte(up: CommandFolder) -> None:
    done = subprocess.run(
        [*MAIN, "exec", "sh", "-c", "cat; printf 'no end\\0'; echo wrong >&2; exit 7"],
        cwd=up.path, input=b"in\xff\n", capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\xff\nno end\0", b"wrong\n")


def test_all_ranks_have_their_place_in_front_and_the_largest_status_counts(
    up: CommandFolder,
) -> None:
    said = up.monarch("exec", "--all", "sh", "-c", "echo at $MONARCH_RANK; exit $MONARCH_RANK",
                      status=2)  # fmt: skip
    lines = said.splitlines()
    assert sorted(lines[:3]) == [
        "[evals0 2] at 2", "[trainers0 0] at 0", "[trainers1 1] at 1",
    ]  # fmt: skip
    assert set(lines[3:]) == {"trainers1 1: ended with status 1", "evals0 2: ended with status 2"}


def test_places_within_a_host(up: CommandFolder) -> None:
    said = up.monarch(
        "exec", "--mesh", "trainers", "--per-host", "gpus=2", "--point", "gpus=1",
        "-e", "WHAT=a=b", "--workdir", "/",
        "sh", "-c", "echo $MONARCH_RANK_hosts/$MONARCH_SIZE_hosts $MONARCH_RANK_gpus $WHAT $PWD",
    )  # fmt: skip
    assert set(said.splitlines()) == {
        "[trainers0 1] 0/2 1 a=b /", "[trainers1 3] 1/2 1 a=b /",
    }  # fmt: skip


def test_output_is_shown_while_it_runs(up: CommandFolder, tmp_path: Path) -> None:
    go = tmp_path / "go"
    started = subprocess.Popen(
        [*MAIN, "exec", "--mesh", "trainers", "sh", "-c",
         f"echo first; while [ ! -e {go} ]; do sleep 0.05; done; echo second"],
        cwd=up.path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with started:
        assert started.stdout is not None
        first = [started.stdout.readline() for _ in range(2)]
        assert all(line.endswith("first\n") for line in first)
        go.touch()
        assert started.stdout.read().count("second\n") == 2
    assert started.returncode == 0


def test_lines_that_say_the_same_are_made_one(up: CommandFolder) -> None:
    said = up.monarch(
        "exec",
        "--all",
        "--aggregate",
        "60",
        "sh",
        "-c",
        "for i in 1 2 3; do echo this was step $i of 3; done",
    )
    assert "[9 similar log lines]" in said


@pytest.mark.long
def test_scripts_and_modules(up: CommandFolder) -> None:
    up.write("plain.sh", "echo plain $1 $BASH_VERSION\n")
    up.write("own.pl", "#!/bin/sh\necho own $0 $1\n")
    up.write("code.py", "import sys; print('python', sys.argv[1:], sys.executable)\n")
    assert up.monarch("exec", "--script", "plain.sh", "x").startswith("plain x")
    assert up.monarch("exec", "--script", "own.pl", "y").endswith(" y\n")
    assert up.monarch("exec", "--script", "code.py", "z") == f"python ['z'] {sys.executable}\n"
    assert up.monarch("exec", "-m", "platform")
    piped = subprocess.run(
        [*MAIN, "exec", "--script", "-", "w"], cwd=up.path, input="echo piped $1", text=True,
        capture_output=True, timeout=100, check=True,
    )  # fmt: skip
    assert piped.stdout == "piped w\n"


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["exec"], 1, "no command was given"),
        (["exec", "--mesh", "nope", "true"], 1, "no mesh 'nope' in this allocation; it has: train"),
        (["exec", "--point", "hosts=7", "true"], 1, "hosts=7 is not there: hosts go from 0 to 1"),
        (["exec", "--point", "gpus=0", "true"], 1, "there is no dimension 'gpus' here"),
        (["exec", "--point", "x", "true"], 1, "'x' is no point"),
        (["exec", "--all", "--one", "true"], 2, "--all goes without"),
        (["exec", "--per-host", "gpus=0", "true"], 2, "give a number of processes"),
        (["exec", "-e", "NAME", "true"], 2, "give it as NAME=VALUE"),
        (["exec", "--script", "missing.sh"], 1, "cannot read the script missing.sh: No such file"),
        (["exec", "--workdir", "/nope", "true"], 255, "there is no folder /nope"),
        (["exec", "no-such-program"], 127, "no-such-program: No such file or directory"),
        (["exec", "/etc/passwd"], 126, "Permission denied"),
        (["shell", "--point", "9"], 1, "hosts=9 is not there"),
        (["shell"], 1, "this needs a terminal"),
        (["forward", "x"], 2, "'x' is no port"),
        (["forward", "70000"], 2, "a port lies between 1 and 65535"),
        (["logs", "--since", "soon"], 2, "give it as 30s"),
        (["logs"], 1, "nothing was printed on the hosts"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(
    up: CommandFolder, arguments: list[str], status: int, words: str
) -> None:
    said = up.monarch(*arguments, status=status)
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "words", [["exec", "true"], ["shell"], ["forward", "1"], ["logs"], ["hosts"]]
)
def test_without_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    said = CommandFolder(tmp_path).told(monkeypatch, *words, status=1)
    assert "no allocation is up for this folder" in " ".join(said.split())


@pytest.mark.long
def test_ctrl_c_ends_what_runs_there(up: CommandFolder, mark: str) -> None:
    started = subprocess.Popen(
        [*MAIN, "exec", "--all", "sh", "-c", "sleep 1000 & sleep 1001", mark],
        cwd=up.path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with started:
        wait_for(lambda: len(marked(mark)) == 3)
        below = [child for one in marked(mark) for child in one.children()]
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
    wait_for(lambda: not marked(mark) and not any(one.is_running() for one in below))


def test_what_ignores_ctrl_c_is_ended_by_a_second_one(up: CommandFolder, mark: str) -> None:
    started = subprocess.Popen(
        [*MAIN, "exec", "sh", "-c",
         "trap '' INT TERM; echo deaf; while :; do sleep 0.1; done", mark],
        cwd=up.path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == "deaf\n"
        started.send_signal(signal.SIGINT)
        assert started.stderr is not None
        assert "Ctrl-C again" in "".join(started.stderr.readline() for _ in range(2))
        assert marked(mark)
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 137
    wait_for(lambda: not marked(mark))


@pytest.mark.long_but(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_the_command_is_killed(
    up: CommandFolder, mark: str, number: int
) -> None:
    """Not what has moved to another session either."""
    script = f"setsid sh -c 'sleep 1000; true' {mark} & sleep 1001; true"
    started = subprocess.Popen(
        [*MAIN, "exec", "--mesh", "trainers", "sh", "-c", script, mark],
        cwd=up.path, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    with started:
        wait_for(lambda: len(marked(mark)) == 4)
        started.send_signal(number)
    wait_for(lambda: not marked(mark))


@pytest.mark.long
def test_what_is_left_in_the_background_ends_with_the_command(up: CommandFolder, mark: str) -> None:
    up.monarch("exec", "sh", "-c", f"setsid sh -c 'sleep 1000; true' {mark} & echo done")
    wait_for(lambda: not marked(mark))


@pytest.mark.long
def test_a_reader_that_has_enough_ends_it(up: CommandFolder, mark: str) -> None:
    line = f"{' '.join(MAIN)} exec sh -c 'while :; do echo y; done' {mark} | head -1"
    done = subprocess.run(
        line, shell=True, cwd=up.path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "y\n"
    wait_for(lambda: not marked(mark))


def test_much_output_comes_whole_and_in_order(up: CommandFolder) -> None:
    said = up.monarch("exec", "seq", "300000")
    assert said == "".join(f"{number}\n" for number in range(1, 300001))


@pytest.mark.long
def test_a_shell_has_a_terminal_of_this_size_and_signals(up: CommandFolder, mark: str) -> None:
    with on_terminal(up.path, "shell", "--mesh", "evals", "-e", "PS1=ready> ", "sh") as shell:
        shell.until("ready>")
        shell.press("stty size; echo $MONARCH_HOST\r")
        shell.until("24 80")
        shell.until("evals0")
        shell.resize(rows=30, columns=100)
        shell.press("\r")
        wait_for(lambda: shell.press("stty size\r") or "30 100" in shell.text, 20)
        shell.press(f"sh -c 'sleep 1000; true' {mark}\r")
        wait_for(lambda: marked(mark))
        shell.press("\x03")
        wait_for(lambda: not marked(mark))
        shell.press("exit 5\r")
        assert shell.end() == 5
        assert shell.settings == shell.settings_before


@pytest.mark.long
def test_a_shell_ends_with_its_terminal(up: CommandFolder, mark: str) -> None:
    with on_terminal(up.path, "shell", "sh", "-c", "sleep 1000; true", mark) as shell:
        wait_for(lambda: [p for p in marked(mark) if "shell" not in p.cmdline()])
        shell.process.kill()
        shell.process.wait()
        wait_for(lambda: not marked(mark))


@pytest.mark.long
def test_a_shell_says_when_its_host_is_lost(tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    folder.monarch("apply")
    job = job_load(tmp_path / ".monarch/job_state.json")
    try:
        with on_terminal(tmp_path, "shell", "-e", "PS1=ready> ", "sh") as shell:
            shell.until("ready>")
            os.kill(job.hosts[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
            shell.until("its host was lost")
            assert shell.end() == 1
            assert shell.settings == shell.settings_before
        said = folder.monarch("exec", "true", status=1)
        assert "no allocation is up for this folder" in " ".join(said.split())
    finally:
        job.kill()


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that gives back what it gets, and then ends."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def through(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, 20) as connection:
        thread = threading.Thread(
            target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))
        )
        thread.start()
        got = b""
        while part := connection.recv(1 << 16):
            got += part
        thread.join()
    return got


@pytest.mark.long
def test_a_forwarded_port_passes_all_bytes_both_ways(up: CommandFolder, echo: int) -> None:
    with subprocess.Popen(
        [*MAIN, "forward", f"0:{echo}"], cwd=up.path, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        told = started.stdout.readline()
        found = re.match(rf"127\.0\.0\.1:(\d+) is port {echo} of trainers0", told)
        assert found, told
        address = "127.0.0.1", int(found[1])
        data = os.urandom(3_000_000)
        assert through(address, b"short") == b"short"
        assert hashlib.sha256(through(address, data)).digest() == hashlib.sha256(data).digest()
        waiting = [socket.create_connection(address) for _ in range(20)]
        for one in waiting:
            one.sendall(b"x")
        assert all(one.recv(1) == b"x" for one in waiting)
        for one in waiting:
            one.close()
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.long
def test_a_port_that_is_taken_or_closed(up: CommandFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = up.monarch("forward", str(port), status=1)
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use. Give another" in said
    with subprocess.Popen(
        [*MAIN, "forward", f"0:{port}"], cwd=up.path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stderr is not None
        here = int(re.split("[: ]", started.stdout.readline())[1])
        assert through(("127.0.0.1", here), b"") == b""
        assert f"cannot connect to port {port}" in started.stderr.readline()
        started.send_signal(signal.SIGINT)


PRINTS = """
from monarch.actor import Actor, endpoint
from monarch.job import exec_command, job_load


class Printer(Actor):
    @endpoint
    def tell(self, text):
        print(text)


if __name__ == "__main__":
    hosts = job_load(".monarch/job_state.json")._state().trainers
    printers = hosts.spawn_procs({"gpus": 2}, name="work").spawn("printer", Printer)
    printers.tell.call("old words").get()
    input()
    printers.tell.call("new words").get()
    print("status", exec_command(hosts, ["sh", "-c", "exit 3"], point={"hosts": 1}).get())
"""


@pytest.mark.long
def test_logs_are_kept_on_the_hosts(tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    folder.write("monarch.toml", PROJECT)
    folder.write("prints.py", PRINTS)
    folder.monarch("apply")
    try:
        with subprocess.Popen(
            [sys.executable, "prints.py"], cwd=tmp_path, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as program:  # fmt: skip
            wait_for(lambda: folder.monarch("logs", status=None).count("old words") == 4, 60.0)
            following = subprocess.Popen(
                [*MAIN, "logs", "-f", "--rank", "3"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert following.stdout is not None
            assert following.stdout.readline() == "[trainers1 work 3] old words\n"
            until = time.time() + 1.1
            wait_for(lambda: time.time() > until)
            began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.close()
            assert program.stdout is not None
            assert "status 3" in program.stdout.read()
        with following:
            assert following.stdout.readline() == "[trainers1 work 3] new words\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 130
        # Its procs have ended, and what they printed is there.
        assert folder.monarch("logs", "--since", began).splitlines() == [
            f"[trainers{rank // 2} work {rank}] new words" for rank in range(4)
        ]
        assert folder.monarch("logs", "--point", "1", "--tail", "1", "--rank", "2") == (
            "[trainers1 work 2] new words\n"
        )
        assert "nothing was printed by rank 9" in folder.monarch("logs", "--rank", "9", status=1)
    finally:
        job_load(tmp_path / ".monarch/job_state.json").kill()


def test_since() -> None:
    now = time.mktime(time.strptime("2026-03-04 12:00:00", "%Y-%m-%d %H:%M:%S"))
    assert since_time("90s", now) == now - 90
    assert since_time("1.5h", now) == now - 5400
    assert since_time("11:30", now) == now - 1800
    assert since_time("2026-03-03", now) == now - 36 * 3600


@pytest.mark.long
def test_hosts(up: CommandFolder) -> None:
    said = up.monarch("hosts").splitlines()
    assert [line.split()[:3] for line in said[1:4]] == [
        ["trainers0", "trainers", "hosts=0"],
        ["trainers1", "trainers", "hosts=1"],
        ["evals0", "evals", "hosts=0"],
    ]
