"""``monarch dev``: hosts, a watch and a run in one terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from monarch.cli import commands
from tests.cli.on_terminal import on_terminal
from tests.support import Program, wait_for

from .conftest import Folder
from .test_cli_sync_watch import Command


def watches_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [child for child in children if "--watch" in child.cmdline()]


@pytest.mark.long
def test_one_terminal_shows_all_and_ctrl_c_ends_it_in_order(folder: Folder) -> None:
    with on_terminal(folder.path, "dev", "adding.py", "stop_file=stop") as shown:
        shown.until("sync  ✓ gen 1")
        shown.until("amounts [1] on 2 procs")
        shown.until("sync  keys: r push again")
        folder.write("amounts.py", "AMOUNT = 2\n")
        shown.until("sync  ✓ gen 2")
        shown.until("amounts [2] on 2 procs")
        shown.press("b")
        shown.until("sync  ✓ gen 3")
        shown.until("amounts [1] on 2 procs", times=2)
        (watch,) = watches_of(shown.process.pid)
        shown.press("\x03")
        assert shown.end() == 130
        assert shown.settings == shown.settings_before
    assert not watch.is_running()
    assert folder.job.is_running()


@pytest.mark.long
def test_what_a_push_waits_for_is_said_by_the_run_and_not_by_the_watch_too(folder: Folder) -> None:
    slow_file = folder.path / "runs" / "slow"  # It is not synced: the ranks see this very one.
    slow_file.parent.mkdir(exist_ok=True)
    waiting = f"while os.path.exists({str(slow_file)!r}):\n            time.sleep(0.01)\n        "
    recipe = (folder.path / "adding.py").read_text()
    folder.write("adding.py", recipe.replace("self.total +=", f"{waiting}self.total +="))
    with on_terminal(folder.path, "dev", "adding.py", "stop_file=stop") as shown:
        shown.until("amounts [1] on 2 procs")
        slow_file.touch()
        folder.write("amounts.py", "AMOUNT = 2\n")
        shown.until("generation 2 waits for")
        slow_file.unlink()
        shown.until("amounts [2] on 2 procs")
        shown.press("\x03")
        assert shown.end() == 130
        said = [line for line in shown.text.splitlines() if "generation 2 waits for" in line]
        assert not [line for line in said if "sync" in line], shown.text
        assert "waits for adder 0-1 (in 'add'), for 3 s" in said[0], "not all ranks in one line"
        assert len(said) == len(set(said))
        assert "to begin again: monarch dev adding.py stop_file=stop" in shown.text


@pytest.mark.long
def test_a_run_that_ends_ends_the_watch(folder: Folder) -> None:
    said = folder.monarch("dev", "adding.py", "num_steps=3")
    assert "\ndone\n" in said
    assert said.endswith("the hosts stay up: `monarch kill` ends them\n")
    assert "sync  stopped" not in said


@pytest.mark.long
def test_a_watch_that_ends_ends_the_run_with_the_reason(folder: Folder, command: Command) -> None:
    running: Program = command("dev", "adding.py", "stop_file=stop")
    running.line("amounts [1] on 2 procs", timeout=60)
    (watch,) = watches_of(running.process.pid)
    os.kill(watch.pid, signal.SIGKILL)
    running.line("sync  the watch has ended")
    assert running.wait() == 1
    wait_for(lambda: any("the watch ended with status -9" in line for line in running.errors))


@pytest.mark.parametrize(
    ("arguments", "told", "status"),
    [
        (["adding.py", "num_stepz=3"], "num_steps", 2),
        ([], "Missing argument", 2),
    ],
)
def test_a_mistake_ends_it_and_leaves_no_watch(
    folder: Folder, arguments: list[str], told: str, status: int
) -> None:
    assert told in folder.monarch("dev", *arguments, status=status)


@pytest.mark.parametrize(
    ("words", "run_gets", "opens"),
    [
        (["ddp", "--config", "a.toml", "--open"], ["ddp", "--config", "a.toml"], True),
        (["--open", "train.py", "--", "--lr", "1"], ["train.py", "--", "--lr", "1"], True),
        (["train.py", "--", "--open"], ["train.py", "--", "--open"], False),
    ],
)
def test_the_page_is_opened_wherever_its_option_stands(
    words: list[str], run_gets: list[str], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def dev(apply: object, run: Callable[[], object], *, opens: bool) -> None:
        run()
        asked.append(opens)

    monkeypatch.setattr("monarch.cli.run.dev.dev", dev)
    monkeypatch.setattr(commands.run, "main", lambda given, *_, **__: asked.append(given))
    commands.cli.main(["dev", *words], standalone_mode=False)
    assert asked == [run_gets, opens]
