"""``monarch sync --watch``, through what happens while it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from monarch.runtime.client_agent import client
from monarch.runtime.hosts.bulletins import post
from monarch.wire.bulletin import Bulletin
from monarch_sync.content.disk import Disk
from tests.cli.on_terminal import on_terminal
from tests.support import Program, wait_for

from .conftest import PROJECT, Folder

Command = Callable[..., Program]


@pytest.fixture
def up(folder: Folder) -> Folder:
    """The folder, with its two hosts up."""
    folder.monarch("apply")
    return folder


@pytest.fixture
def watcher(up: Folder, command: Command) -> Program:
    """A watch that has made its first push."""
    started = command("sync", "--watch")
    started.line("✓ gen 1  3 files → 2 hosts", timeout=60)
    started.line("watching ")
    return started


def end(watcher: Program) -> None:
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 0, watcher.story()
    assert watcher.errors == []
    assert watcher.lines[-1].startswith("stopped watching; hosts and processes stay as they are")


def test_one_line_a_save_and_none_for_nothing(up: Folder, watcher: Program) -> None:
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    up.write("amounts.py", "AMOUNT = 2\n")  # saved again, with nothing changed
    up.write("runs.txt", "1")
    watcher.line("✓ gen 3  1 file → 2 hosts")
    end(watcher)
    assert sum(line.startswith("✓") for line in watcher.lines) == 3


PRINTS = """
import sys
from monarch.runtime.client_agent import client
client()
log = open("own.log", "w")
for line in sys.stdin:
    print(line, end="", flush=True)
    print(line, end="", file=log, flush=True)
"""


@pytest.mark.long
def test_what_a_monarch_process_prints_into_the_folder_is_not_pushed(
    up: Folder, watcher: Program
) -> None:
    """Straight into a file, and through ``| tee``; what another program writes there is."""
    prints = subprocess.Popen(
        [sys.executable, "-c", PRINTS],
        cwd=up.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert prints.stdin is not None
    own, copy = up.path / "own.log", up.path / "run.log"
    wait_for(own.exists, 60.0)
    with (
        prints,
        subprocess.Popen(
            ["tee", "run.log"], cwd=up.path, stdin=prints.stdout, stdout=subprocess.DEVNULL
        ),
    ):
        for number in range(3):
            prints.stdin.write(f"line {number}\n")
            prints.stdin.flush()
            wait_for(lambda n=number: copy.exists() and f"line {n}" in copy.read_text(), 30.0)
        wait_for(lambda: sum("is output, not code" in line for line in watcher.lines) == 2, 30.0)
        up.write("notes.txt", "a person's\n")
        told = watcher.line("✓ gen ")
        prints.stdin.close()
    assert told.startswith("2  1 file → 2 hosts")
    assert not (up.replica() / "run.log").exists()
    end(watcher)
    assert sum("is output, not code" in line for line in watcher.lines) == 2


def test_what_nobody_has_loaded_may_not_compile_and_is_told(up: Folder, watcher: Program) -> None:
    up.write("amounts.py", "AMOUNT = (2\n")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    watcher.line("  amounts.py:1 does not compile: '(' was never closed. It was pushed")
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 3  1 file → 2 hosts")
    (up.path / "odd\nname.py").write_text("-" * 100_000 + "1\n")
    watcher.line("  odd\\nname.py does not compile")
    end(watcher)


def test_it_talks_to_programs(up: Folder, command: Command) -> None:
    watcher = command("sync", "--watch", "--json")
    wait_for(lambda: len(watcher.lines) >= 2, 60.0)
    up.write("amounts.py", "AMOUNT = 2\n")
    wait_for(lambda: len(watcher.lines) >= 3, 30.0)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 0
    said = [json.loads(line) for line in watcher.lines]
    assert [one["event"] for one in said] == ["push", "watching", "push", "stopped"]
    assert said[1]["folders"] == [str(up.path)]
    assert [said[0]["generation"], said[2]["generation"]] == [1, 2]
    assert said[2]["changed_files"] == ["amounts.py"]


def test_it_says_why_saves_are_looked_for(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(
        "import sys; sys.argv = ['monarch', 'sync', '--watch']\n"
        "from monarch_sync.watching import cover; cover.tells_all = lambda path: False\n"
        "from monarch.cli.main import main; main()"
    )
    watcher.line("watching ", timeout=60)
    watcher.line("the file system of ")
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    end(watcher)
    assert sum("does not tell of all changes" in line for line in watcher.lines) == 1


def test_what_is_in_no_list_of_files_is_told_too(up: Folder, watcher: Program) -> None:
    (up.path / "runner.sh").write_text("true\n")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    (up.path / "runner.sh").chmod(0o755)
    watcher.line("✓ gen 3 ")
    outside = up.path.with_name("outside")
    (up.path / "out").symlink_to(outside)
    watcher.line(f"  left out out: is a link to the absolute path '{outside}'")
    end(watcher)


FAILING_DISK = """
import os, sys
from monarch.cli.sync import watching
from monarch_sync.scanning import readings

real = readings._read

def read(local, *more):
    if local.endswith("/amounts.py") and os.path.exists({flag!r}):
        raise OSError(5, "Input/output error")
    return real(local, *more)

readings._read, watching._LOOK_AGAIN_SECONDS = read, 0.1
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main; main()
"""


@pytest.mark.long
def test_what_cannot_be_read_is_looked_at_again(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    monkeypatch.chdir(up.path)
    flag = tmp_path_factory.mktemp("flag") / "disk_fails"
    watcher = program(FAILING_DISK.format(flag=str(flag)))
    watcher.line("watching ", timeout=60)
    flag.touch()
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("  hosts keep what they have of amounts.py: Input/output error")
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 1\n"
    flag.unlink()  # and nobody tells
    watcher.line("✓ gen 2  1 file → 2 hosts")
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 2\n"
    end(watcher)


RETRYING = """
import sys
from monarch.cli.sync.push_news import Retrying

Retrying.first_seconds = 0.1
sys.argv = ["monarch", "sync", "--watch", *{arguments!r}]
from monarch.cli.main import main; main()
"""


@pytest.mark.long_but(1)
@pytest.mark.parametrize("arguments", [[], ["--best-effort"]], ids=["all", "best effort"])
def test_what_passes_by_itself_is_tried_again_without_a_save(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(RETRYING.format(arguments=arguments))
    watcher.line("watching ", timeout=60)
    stage = up.state(1) / "stage"
    shutil.rmtree(stage)
    stage.write_text("in the way")  # as good as a full disk
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 2  1 file → 1 host (1 left behind)" if arguments else "✗ refused")
    watcher.line("this may pass without a save: trying again in ")
    stage.unlink()
    wait_for(lambda: (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 2\n", 30.0)
    if not arguments:
        watcher.line("✓ gen 2  1 file → 2 hosts")
    end(watcher)
    assert sum("may pass without a save" in line for line in watcher.lines) == 1


def test_a_job_that_writes_into_the_folder_is_pointed_out(up: Folder, watcher: Program) -> None:
    (up.path / "out").mkdir()
    told = "    /out/"
    for number in range(50):
        pushed = len(watcher.lines)
        (up.path / "out/loss.log").write_text(f"{number}\n")
        wait_for(lambda pushed=pushed: len(watcher.lines) > pushed, 30.0)
        if told in watcher.lines:
            break
    watcher.line(f"to {up.path}/.monarchignore")
    up.write(".monarchignore", "/out/\n")
    watcher.line("✓")
    wait_for(lambda: not (up.replica() / "out").exists(), what="it to be left out")
    end(watcher)


@pytest.mark.long
def test_it_outlives_the_allocation(up: Folder, watcher: Program) -> None:
    up.monarch("kill")
    # Who looks while `kill` is at it finds hosts gone, and says which; this is at the end of both.
    told = "What you save is pushed as soon as there is one again: `monarch apply`"
    wait_for(lambda: any(told in line for line in watcher.lines), 60.0, "the end to be told")
    up.write("amounts.py", "AMOUNT = 2\n")
    up.monarch("apply")
    watcher.line("the allocation is up again", timeout=60)
    watcher.line("✓ gen ")
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 2\n"
    up.write("amounts.py", "AMOUNT = 3\n")
    watcher.line("✓ gen ")
    wait_for(lambda: (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 3\n")
    end(watcher)


def test_hosts_that_crash_are_missed_at_the_next_save(up: Folder, watcher: Program) -> None:
    for host in up.job.hosts:
        os.kill(host.pid, signal.SIGKILL)
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("hosts of the allocation have ended:", timeout=20)
    assert not any("Traceback" in line for line in (*watcher.lines, *watcher.errors))
    end(watcher)


@pytest.mark.long
def test_a_watch_goes_on_without_a_host_that_died_if_asked(up: Folder, command: Command) -> None:
    watcher = command("sync", "--watch", "--best-effort")
    watcher.line("watching ", timeout=60)
    dead = up.job.hosts[1]
    os.kill(dead.pid, signal.SIGKILL)
    wait_for(lambda: not dead.is_running, what="its end")
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("  left behind ", timeout=60)
    # The watch may have noticed the death before it noticed the save.
    wait_for(lambda: (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 2\n", 60.0)
    end(watcher)


@pytest.mark.long
def test_another_project_file(up: Folder, watcher: Program) -> None:
    (up.path / "source").mkdir()
    (up.path / "source/inner.py").write_text("1\n")
    watcher.line("✓ gen 2")
    up.write("monarch.toml", PROJECT.replace('["."]', '["sorce"]'))
    watcher.line("✗ monarch.toml:5: [workspace] dirs names 'sorce'")
    watcher.line("  going on with what monarch.toml said before")
    up.write("monarch.toml", PROJECT.replace('["."]', '["source"]'))
    assert watcher.line("watching ") == f"{up.path}/source; Ctrl-C ends it"
    watcher.line("✓ gen ")
    wait_for(lambda: (up.replica() / "inner.py").exists(), what="the new workspace")
    assert not (up.replica() / "amounts.py").exists()
    (up.path / "source/inner.py").write_text("2\n")
    watcher.line("✓ gen ")
    up.write("monarch.toml", PROJECT.replace('["."]', '["source"]').replace("= 2", "= 1"))
    watcher.line("[job] in monarch.toml has changed; the hosts stay as they are until")
    up.write("monarch.toml", PROJECT.replace('["."]', '["source"]'))
    watcher.line("[job] in monarch.toml is as it was when the watch began; the hosts stay")
    end(watcher)


@pytest.mark.long
def test_a_workspace_that_vanishes_and_comes_back(up: Folder, command: Command) -> None:
    (up.path / "source").mkdir()
    (up.path / "source/inner.py").write_text("1\n")
    up.write("monarch.toml", PROJECT.replace('["."]', '["source"]'))
    watcher = command("sync", "--watch")
    watcher.line("✓ gen 1  1 file", timeout=60)
    watcher.line("watching ")
    (up.path / "source").rename(up.path / "away")
    lost = watcher.line(f"{up.path}/source is gone; hosts keep what they have")
    assert "Waiting for it to come back" in lost
    assert (up.replica() / "inner.py").read_text() == "1\n"
    (up.path / "away/inner.py").write_text("2\n")
    (up.path / "away").rename(up.path / "source")
    watcher.line("watching ")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    (up.path / "source/inner.py").write_text("3\n")
    watcher.line("✓ gen 3  1 file → 2 hosts")
    end(watcher)


EACH_FOLDER_IS_A_DISK = """
import os
import sys
from monarch_sync.scanning import identities

identities._disk_of = lambda folder: os.stat(folder).st_ino
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main; main()
"""


@pytest.mark.long
def test_a_workspace_whose_disk_is_unmounted_is_waited_for(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(up.path)
    source = up.path / "source"
    source.mkdir()
    (source / "inner.py").write_text("1\n")
    up.write("monarch.toml", PROJECT.replace('["."]', '["source"]'))
    watcher = program(EACH_FOLDER_IS_A_DISK)
    watcher.line("✓ gen 1  1 file", timeout=60)
    watcher.line("watching ")
    (up.path / "mount_point").mkdir()
    Disk().exchange(source, up.path / "mount_point")  # what unmounting looks like
    lost = watcher.line(f"{source} is empty, and on another disk than before")
    assert "Waiting for it to come back" in lost
    assert (up.replica() / "inner.py").read_text() == "1\n"
    (up.path / "mount_point/inner.py").write_text("2\n")
    Disk().exchange(source, up.path / "mount_point")
    watcher.line("watching ")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    (source / "inner.py").unlink()  # the same folder, emptied by hand
    watcher.line("✓ gen 3  1 file deleted → 2 hosts")
    assert not (up.replica() / "inner.py").exists()
    end(watcher)


def test_a_rollback_beside_it_holds_until_the_next_save(up: Folder, watcher: Program) -> None:
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 2")
    up.monarch("sync", "rollback")
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 1\n"
    # It is told as it happens, before anything is saved.
    told = watcher.line("gen 3 from ")
    assert told.endswith("1 file: amounts.py (same as gen 1); your next save is pushed over it")
    up.write("other.py", "\n")
    watcher.line("✓ gen 4  2 files → 2 hosts")
    assert (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 2\n"
    end(watcher)


def test_a_generation_of_somebody_else_is_no_gap(up: Folder, watcher: Program) -> None:
    watcher.send_signal(signal.SIGSTOP)
    up.write("amounts.py", "AMOUNT = 2\n")
    up.monarch("sync")
    up.write("amounts.py", "AMOUNT = 3\n")
    watcher.send_signal(signal.SIGCONT)
    watcher.line("✓ gen 3  1 file → 2 hosts")
    up.write("amounts.py", "AMOUNT = 4\n")
    watcher.line("✓ gen 4  1 file → 2 hosts")
    end(watcher)
    # Once: as it is heard of, or with the push behind it, whichever comes first.
    (told,) = [line for line in watcher.lines if "gen 2 from " in line]
    assert ", 1 file: amounts.py" in told


def test_two_watches_know_of_each_other(up: Folder, watcher: Program, command: Command) -> None:
    second = command("sync", "--watch")
    second.line("✓ gen 1  0 files → 2 hosts", timeout=60)
    second.line("watched by ")
    assert f"(pid {second.process.pid}, " in watcher.line("watched by ")
    up.write("amounts.py", "AMOUNT = 2\n")
    # Both see the save, and one of them pushes it.
    wait_for(lambda: any("✓ gen 2" in line for line in (*watcher.lines, *second.lines)))
    end(second)
    end(watcher)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_watch_that_has_ended_is_told_of_no_more(
    up: Folder, watcher: Program, command: Command, how: signal.Signals
) -> None:
    assert f"watched by monarch sync --watch (pid {watcher.process.pid}, " in up.monarch("status")
    watcher.send_signal(how)
    watcher.wait()
    wait_for(lambda: "watched by" not in up.monarch("status"))
    second = command("sync", "--watch")
    second.line("watching ", timeout=60)
    up.write("amounts.py", "AMOUNT = 2\n")
    second.line("✓ gen 2")
    end(second)
    assert not [line for line in second.lines if "watched by" in line]


@pytest.mark.long
def test_keys(up: Folder) -> None:
    with on_terminal(up.path, "sync", "--watch") as shown:
        shown.until("r push again, b roll back, d diff, h help, q quit")
        assert shown.settings != shown.settings_before
        up.write("amounts.py", "AMOUNT = 2\n")
        shown.until("✓ gen 2")
        shown.press("d")
        shown.until("+AMOUNT = 2")
        shown.press("b")
        shown.until("✓ gen 3")
        shown.until("generation 3 is what 1 was")
        assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 1\n"
        shown.press("r")
        shown.until("✓ gen 4")
        assert (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 2\n"
        shown.press("h")
        shown.until("stop watching, as Ctrl-C does")
        shown.press("\x1b[A")  # an arrow means nothing
        shown.press("q")
        assert shown.end() == 0
        shown.until("stopped watching")
        assert "in between" not in shown.text
        assert shown.settings == shown.settings_before


@pytest.mark.long
@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_the_terminal_is_as_it_was_however_the_watch_ends(up: Folder, how: str) -> None:
    with on_terminal(up.path, "sync", "--watch") as shown:
        shown.until("q quit")
        if how == "Ctrl-C":
            shown.press("\x03")
        else:
            shown.process.terminate()
        assert shown.end() == (0 if how == "Ctrl-C" else 128 + signal.SIGTERM)
        assert shown.settings == shown.settings_before


FAILING_WATCHER = """
import sys, threading
from monarch.cli.sync import watching
from monarch_sync.watching.watch import Watcher

real, begun = Watcher.__iter__, []

def fail(self):
    begun.append(self)
    if len(begun) < 3:
        raise OSError(24, "Too many open files")
    yield from real(self)

Watcher.__iter__, watching._TICK_SECONDS = fail, 0.1
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main; main()
"""


def test_a_watcher_that_cannot_go_on_is_told_and_made_anew(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(FAILING_WATCHER)
    watcher.line("watching ", timeout=60)
    watcher.line("✗ [Errno 24] Too many open files")
    up.write("amounts.py", "AMOUNT = 2\n")
    watcher.line("✓ gen 2  1 file → 2 hosts")
    end(watcher)


SLOW_COMMIT = """
import os, sys, threading
from monarch.runtime.workspace.code_switch.host_files import HostFiles

real = HostFiles.show

def slow(self):
    HostFiles.show = real  # the way back is as fast as ever
    print("at it", flush=True)
    threading.Event().wait({before})
    vote = real(self)
    threading.Event().wait({after})
    return vote

HostFiles.show = slow
sys.argv = ["monarch", "sync", *{arguments!r}]
from monarch.cli.main import main
main()
"""


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("arguments", "moment"),
    [([], {"before": 0, "after": 60}), (["--watch"], {"before": 60, "after": 0})],
    ids=["once, after it", "watch, before it"],
)
def test_an_interrupted_push_leaves_hosts_as_they_were_and_says_so(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch,
    moment: dict[str, int], arguments: list[str],
) -> None:  # fmt: skip
    up.monarch("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    monkeypatch.chdir(up.path)
    pushing = program(SLOW_COMMIT.format(arguments=arguments, **moment))
    pushing.line("at it", timeout=60)
    if moment["after"]:
        wait_for(lambda: (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 2\n")
    pushing.send_signal(signal.SIGINT)
    status = pushing.wait()
    assert status == (0 if arguments else 130), pushing.story()
    assert pushing.errors == []
    text = "a push was interrupted, all 2 hosts have gen" if arguments else "interrupted; all 2"
    assert text in pushing.lines[-1]
    # Back where they were, once what was committed has been taken back.
    for index in (0, 1):
        assert (up.replica(index) / "amounts.py").read_text() == "AMOUNT = 1\n"
    assert "1 file → 2 hosts" in up.monarch("sync")


@pytest.mark.long
def test_its_own_log_in_the_workspace_is_none_of_it(up: Folder) -> None:
    log = up.path / "watch [1].log"
    with open(log, "w") as out:
        watching = subprocess.Popen(
            [sys.executable, "-m", "monarch.cli.main", "sync", "--watch"],
            cwd=up.path, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_for(lambda: "watching " in log.read_text(), 60, "the first push")
        up.write("amounts.py", "AMOUNT = 2\n")
        wait_for(lambda: "gen 2 " in log.read_text(), 60, "the next")
    finally:
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    pushes = [line for line in log.read_text().splitlines() if line.startswith("✓")]
    assert len(pushes) == 2, pushes
    assert pushes[0].startswith("✓ gen 1  3 files → 2 hosts")
    assert pushes[1].startswith("✓ gen 2  1 file → 2 hosts")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_else_asks_it_to_end_is_told_as_much(watcher: Program, number: signal.Signals) -> None:
    watcher.send_signal(number)
    assert watcher.wait() == 128 + number, watcher.story()
    assert watcher.lines[-1].startswith("stopped watching; hosts and processes stay as they are")
    assert watcher.errors == []


@pytest.mark.long_but(1)
@pytest.mark.parametrize("arguments", [[], ["--watch"]], ids=["once", "watch"])
def test_a_push_that_is_asked_to_end_twice_puts_all_back(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    up.monarch("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    monkeypatch.chdir(up.path)
    pushing = program(SLOW_COMMIT.format(arguments=arguments, before=0, after=60))
    pushing.line("at it", timeout=60)
    wait_for(lambda: (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 2\n")
    for _ in range(2):
        pushing.send_signal(signal.SIGTERM)
    # The second may come when Python itself is at its end, and has no handlers any more.
    assert pushing.wait() in (128 + signal.SIGTERM, -signal.SIGTERM), pushing.story()
    assert "interrupted" in pushing.lines[-1]
    assert pushing.errors == []
    for index in (0, 1):
        assert (up.replica(index) / "amounts.py").read_text() == "AMOUNT = 1\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_asked_once_more_at_its_end_leaves_with_the_same_status(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(SLOW_EXIT)
    watcher.line("watching ", timeout=60)
    watcher.send_signal(number)
    watcher.line("at its exit", timeout=60)
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait() == 128 + number, watcher.story()
    assert watcher.errors == []


SLOW_EXIT = """
import atexit, sys, threading

def slow():
    print("at its exit", flush=True)
    threading.Event().wait(60)

atexit.register(slow)
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main
main()
"""

SLOW_TELLING = """
import sys, threading
from monarch.cli.sync.watching import Watching

real = Watching._tell

def slow(self, *arguments):
    real(self, *arguments)
    print("told", flush=True)
    threading.Event().wait(60)

Watching._tell = slow
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main
main()
"""


def test_a_push_that_has_been_told_of_was_not_interrupted(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(SLOW_TELLING)
    watcher.line("✓ gen 1", timeout=60)
    watcher.line("told")
    end(watcher)
    assert "interrupted" not in watcher.lines[-1]


SLOW_END = """
import sys, threading
from monarch.cli.sync.watching import Watching

def slow(self):
    print("at its end", flush=True)
    threading.Event().wait(60)

Watching._tell_end = slow
sys.argv = ["monarch", "sync", "--watch"]
from monarch.cli.main import main
main()
"""


def test_who_presses_again_does_not_wait_for_what_it_says_at_its_end(
    up: Folder, program: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(up.path)
    watcher = program(SLOW_END)
    watcher.line("watching ", timeout=60)
    watcher.send_signal(signal.SIGINT)
    watcher.line("at its end")
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 130, watcher.story()
    assert watcher.errors == []


def test_it_tells_of_a_run_that_holds(up: Folder, watcher: Program) -> None:
    held = Bulletin("run a", "held", "run a holds in step 7\nsave a fix", 2, stands=True)
    hosts = [client().visit(url) for url in up.job.urls()]
    post(client().node, hosts, held)
    watcher.line("✗ run a holds in step 7", timeout=30)
    watcher.line("  save a fix")
    wait_for(lambda: "run a holds in step 7" in up.monarch("status"))
    post(client().node, hosts, Bulletin("run a", "mended", "run a goes on", 3))
    watcher.line("run a goes on", timeout=30)
    # The watch hears of it from any host.
    wait_for(lambda: "holds" not in up.monarch("status"))
    end(watcher)


MAKES_ONE = """
AMOUNT = 1


def make(first):
    def made():
        return first

    return made
"""
MAKES_TWO = """
AMOUNT = 2


def make(first):
    second = 2

    def made():
        return first + second

    return made
"""


@pytest.mark.long
def test_a_push_is_told_at_once_and_old_code_when_the_audit_has_found_it(
    up: Folder, command: Command
) -> None:
    recipe = (up.path / "adding.py").read_text()
    up.write(
        "adding.py",
        recipe.replace("self.total = 0", "self.total, self.held = 0, amounts.make(1)"),
    )
    up.write("amounts.py", MAKES_ONE)
    up.write("run.toml", f"stop_file = {str(up.path.with_name('stop'))!r}\n")
    run = command("run", "./adding.py", "--config", "run.toml")
    run.line("amounts [1] on 2 procs", timeout=60)
    watcher = command("sync", "--watch")
    watcher.line("watching ", timeout=60)
    # The new function uses a second variable, which the closure that was made before has not.
    up.write("amounts.py", MAKES_TWO)
    watcher.line("✓ gen 2  1 file → 2 hosts", timeout=60)
    watcher.line("! gen 2  runs old code, too", timeout=60)
    watcher.line("  old code: ")
    up.path.with_name("stop").touch()
    run.line("done", timeout=60)
    end(watcher)


def test_logs_that_a_training_writes_are_left_out(up: Folder, watcher: Program) -> None:
    events = up.path / "events.out.tfevents.1"
    for generation in (2, 3):
        events.write_text(f"row {generation}")
        watcher.line(f"✓ gen {generation}", timeout=60)
    watcher.line(f"{events.name} is written by a program, as it seems, and left out", timeout=60)
    events.write_text("row 4")
    up.write("amounts.py", "AMOUNT = 77\n")
    wait_for(lambda: (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 77\n")
    assert not (up.replica(0) / events.name).exists(), "hosts have it no more"


def test_files_that_stay_here_bring_no_code_back_after_a_rollback(
    up: Folder, watcher: Program
) -> None:
    """A training that saves its weights would undo what a person has gone back to."""
    before = (up.path / "amounts.py").read_text()
    up.write("amounts.py", "AMOUNT = 13\n")
    watcher.line("✓ gen 2", timeout=60)
    up.monarch("sync", "rollback")
    watcher.line("gen 3 from ", timeout=60)
    (up.path / "runs").mkdir(exist_ok=True)
    (up.path / ".monarchignore").write_text("*.pt\n")
    watcher.line("✓ gen 4", timeout=60)  # a save of a person's: all goes along
    up.monarch("sync", "rollback")
    watcher.line("gen 5 from ", timeout=60)
    (up.path / "last.pt").write_text("weights")
    up.monarch("sync", "status")
    (up.path / "notes.txt").write_text("a person's")
    watcher.line("✓ gen 6  3 files → 2 hosts", timeout=60)
    assert (up.replica(0) / "notes.txt").exists()
    assert before != (up.replica(0) / "amounts.py").read_text()
