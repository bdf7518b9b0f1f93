"""`monarch run --hosts N`: some of the allocation's hosts, and another number when it goes on."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from monarch.cli.run import run as run_command
from monarch.cli.terminal.keys import Keys
from monarch.runs import Record
from monarch.runs.record.folder import RunFolder, find_unfinished
from tests.support import wait_for

from .conftest import Folder
from .on_terminal import on_terminal
from .test_cli_hold import RECIPE, Command, told


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_run_takes_as_many_hosts_as_are_wanted_and_goes_on_with_another_number(
    folder: Folder, command: Command
) -> None:
    folder.write("amounts.py", "def look(total):\n    return total\n")
    folder.write("adding.py", RECIPE)
    folder.monarch("apply")
    one = command("run", "adding.py", "--hosts", "1")
    told(one, "1 host x 1 proc")
    wait_for(lambda: (folder.path / "runs/latest/metrics.jsonl").exists(), 60.0)
    told(one, "step ")
    one.send_signal(signal.SIGINT)
    assert one.wait(60) == 130, one.story()
    assert "monarch run adding.py --hosts 1" in one.story()
    assert len(list((folder.path / "runs").glob("adding-*"))) == 1

    both = command("run", "adding.py")
    told(both, "going on with runs/adding-")
    told(both, "2 hosts x 1 proc")
    both.send_signal(signal.SIGINT)
    both.wait(60)
    assert "--hosts" not in both.story()
    assert len(list((folder.path / "runs").glob("adding-*"))) == 1

    too_many = command("run", "adding.py", "--hosts", "3")
    assert too_many.wait(60) != 0
    assert "--hosts 3: the allocation has 2 hosts in" in too_many.story()


def test_this_machine_alone_is_one_host(folder: Folder, command: Command) -> None:
    folder.write("amounts.py", "")
    folder.write("adding.py", RECIPE)
    running = command("run", "adding.py", "--hosts", "2")
    assert running.wait(60) != 0
    assert "--hosts 2: this machine alone is one host" in running.story()


def test_the_same_run_may_go_on_with_another_number_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "ddp-1"
    path.mkdir()
    run = RunFolder(path)
    words = ["monarch", "run", "ddp"]
    run.note_command([*words, "--hosts", "1", "lr=1"])
    run.write_text("events.jsonl", '{"kind": "ended", "status": "stopped", "time": 1}\n')
    found = find_unfinished(tmp_path, "ddp", [*words, "lr=1"])
    assert found is not None
    assert find_unfinished(tmp_path, "ddp", [*words, "lr=2"]) is None
    began = (path / "command").stat().st_mtime_ns
    found.note_command([*words, "--hosts", "2", "lr=1"])
    assert found.command == [*words, "--hosts", "2", "lr=1"]
    found.note_command([*words, "lr=1"])
    assert found.command == [*words, "lr=1"]
    assert (path / "command").stat().st_mtime_ns == began, "runs are in order by it"


class Shows:
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    alarm = phase = message


@pytest.mark.parametrize(("key", "choice"), [("f", "fewer"), ("w", "wait"), ("e", "end")])
def test_a_person_is_asked_what_to_do_without_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, choice: str
) -> None:
    keys = Keys()
    keys._pressed.put("x")  # which means nothing
    keys._pressed.put(key)
    monkeypatch.setattr(run_command, "is_somebody_there", lambda: True)
    monkeypatch.setattr(run_command, "keys_here", lambda: contextlib.nullcontext(keys))
    shows = Shows()
    record = Record(tmp_path, shows)  # type: ignore[arg-type]
    assert run_command._after_host_loss(record, None, "a host is lost") == choice
    assert "a host is lost\nGo on with (f)ewer hosts" in shows.said[0]
    assert run_command._after_host_loss(record, "wait", "again") == "wait"
    record.stop()
    assert run_command._after_host_loss(record, None, "again") == "end"


def test_without_a_terminal_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "is_somebody_there", lambda: False)
    record = Record(tmp_path, Shows())  # type: ignore[arg-type]
    assert run_command._after_host_loss(record, None, "a host is lost") == "end"


ASKING = """
import time
from monarch.cli.terminal.keys import Keys, keys_here
keys = Keys()
keys.on_press = lambda: print("others:", keys.take(), flush=True)
with keys.listen():
    print("first", flush=True)
    while not open("go").read():
        time.sleep(0.01)
    with keys_here() as mine:
        print("asking", flush=True)
        while not (key := mine.take()):
            time.sleep(0.01)
        print("mine:", key, flush=True)
    print("last", flush=True)
    time.sleep(60)
"""


def test_a_question_gets_the_keys_that_others_hear_otherwise(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("")
    with on_terminal(tmp_path, script=ASKING) as terminal:
        terminal.until("first")
        terminal.press("a")
        terminal.until("others: a")
        (tmp_path / "go").write_text("yes")
        terminal.until("asking")
        terminal.press("b")
        terminal.until("mine: b")
        terminal.until("last")
        terminal.press("c")
        terminal.until("others: c")
