"""``monarch sync``, once: what it does, what it says, what it exits with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from monarch.actor import shutdown_context
from monarch.cli.commands import sync
from monarch.cli.main import cli
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch.runs.record.folder import RUNS, new_run
from monarch.runtime.process import is_bootstrapped
from monarch_sync import SyncError
from tests.privileges import unprivileged
from tests.support import Program, wait_for

from .command_folder import CommandFolder
from .conftest import RECIPE, Folder


class Said(NamedTuple):
    out: str
    status: int

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        assert found["schema"] == 1
        return found


Say = Callable[..., Said]


@pytest.fixture
def say(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Say]:
    """Runs a command in this process, in the folder; an error's text is what it says."""
    monkeypatch.chdir(folder.path)

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        status, error = 0, ""
        try:
            cli(list(arguments), standalone_mode=False)
        except SystemExit as end:
            status = int(end.code or 0)
        except click.ClickException as wrong:
            status, error = wrong.exit_code, wrong.format_message()
        except ConfigError as wrong:
            status, error = 2, str(wrong)
        except (MonarchError, SyncError) as wrong:
            status, error = 1, str(wrong)
        return Said(capsys.readouterr().out + error, status)

    yield run
    if is_bootstrapped():
        shutdown_context().get(timeout=20)


@pytest.fixture
def up(folder: Folder, say: Say) -> Iterator[Folder]:
    """The folder, with its two hosts up."""
    folder.monarch("apply")  # hosts that are no children of ours
    yield folder
    if (folder.path / ".monarch/job_state.json").exists():
        folder.job.kill()


# Pushing


def test_a_push_is_a_line(up: Folder, say: Say) -> None:
    (up.path / "runs").mkdir()
    (up.path / "runs/1.txt").write_text("mine")
    said = say("sync")
    assert re.fullmatch(
        r"✓ gen 1  3 files → 2 hosts  [\d.]+ m?s  adding.py, amounts.py, monarch.toml\n", said.out
    )
    assert sorted(p.name for p in up.replica(1).iterdir()) == [
        "adding.py", "amounts.py", "monarch.toml",
    ]  # fmt: skip
    assert re.fullmatch(r"✓ gen 1  0 files → 2 hosts  [\d.]+ m?s\n", say("sync").out)
    up.write("amounts.py", "AMOUNT = 2\n")
    assert "✓ gen 2  1 file → 2 hosts" in say("sync").out
    assert re.search(r"trainers1 +\d+ +2 ", say("status").out)
    up.write("amounts.py", "AMOUNT = 3\n")
    table = say("sync", "-v").out.splitlines()
    assert table[1].split() == ["written", "moved", "deleted", "unchanged", "sent"]
    assert re.fullmatch(r"  trainers0, trainers1 +1 +0 +0 +2 +\d+ B", table[2])
    up.write("amounts.py", "AMOUNT = 4\n")
    assert say("-q", "sync") == Said("", 0)


@pytest.mark.long
def test_a_large_file_is_told_of_before_it_goes(up: Folder, say: Say) -> None:
    size = 50_000_000
    for name in ("same.pt", "weights.pt"):
        up.write(name, "")
        os.truncate(up.path / name, size)
    first, *_, last = say("sync").out.splitlines()
    assert first == "2 large files go to every host:"
    assert last.startswith("✓ gen 1  5 files")
    os.truncate(up.path / "weights.pt", size + 1)
    os.truncate(up.path / "same.pt", size + 1)
    assert say("sync").out.startswith("✓ gen 2  2 files"), "it was told once"
    up.write("more.pt", "z")
    os.truncate(up.path / "more.pt", size)
    found = [json.loads(line) for line in say("sync", "--json").out.splitlines()]
    assert [(one["event"], one.get("files")) for one in found] == [
        ("large-files", ["more.pt"]), ("push", None),
    ]  # fmt: skip


def test_a_push_is_an_object(up: Folder, say: Say) -> None:
    os.mkfifo(up.path / "pipe")
    found = say("sync", "--json").json
    assert (found["event"], found["ok"], found["generation"]) == ("push", True, 1)
    assert found["changed_files"] == ["adding.py", "amounts.py", "monarch.toml"]
    assert [host["host"] for host in found["hosts"]] == ["trainers0", "trainers1"]
    assert found["hosts"][0]["num_written"] == 3
    assert found["bytes_sent"] == sum(host["bytes_sent"] for host in found["hosts"]) > 0
    assert found["problems"] == [
        {
            "path": "pipe", "reason": "is neither a file nor a folder nor a link",
            "is_unreadable": False, "is_kept": False,
        }
    ]  # fmt: skip
    assert bytes.fromhex(found["digest"])


def test_what_a_host_kept_and_what_was_left_out_is_told(up: Folder, say: Say) -> None:
    os.mkfifo(up.path / "pipe")
    assert "left out pipe: is neither" in say("sync").out
    (up.replica() / "amounts.py").write_text("AMOUNT = 9  # tried something here\n")
    up.write("amounts.py", "AMOUNT = 2\n")
    assert re.search(r"changed on trainers0, kept as amounts.py.host-\w{8}\n", say("sync").out)


@pytest.mark.long
def test_what_cannot_be_read_stays_on_the_hosts_and_is_told(up: Folder, say: Say) -> None:
    def said(*arguments: str) -> Said:
        return unprivileged(lambda: say(*arguments))

    kept = "hosts keep what they have of amounts.py: Permission denied\n"
    up.write("later.py", "A = 1\n").chmod(0)
    first = said("sync")
    assert (first.status, first.out.splitlines()[1:]) == (
        3, ["  left out later.py: Permission denied"],
    )  # fmt: skip
    (up.path / "later.py").unlink()
    (up.path / "amounts.py").chmod(0)
    up.write("more.py", "A = 1\n")
    preview = said("sync", "--dry-run")
    assert (preview.status, "delete" in preview.out) == (3, False)
    assert preview.out.endswith(kept)
    assert said("sync", "--dry-run", "--json").json["problems"][0]["is_kept"] is True
    difference = said("sync", "diff")
    assert (difference.status, "amounts.py" in difference.out) == (0, False)
    assert said("sync", "diff", "--json").json["problems"][0]["path"] == "amounts.py"
    explained = said("sync", "--explain", "amounts.py")
    assert "cannot be read: Permission denied; hosts keep what they have" in explained.out

    pushed = said("sync")
    assert (pushed.status, pushed.out.endswith(f"\n  {kept}")) == (3, True)
    assert "1 file → 2 hosts" in pushed.out
    told = said("sync", "--json")
    assert (told.status, told.json["ok"], told.json["problems"]) == (
        3, True,
        [{"path": "amounts.py", "reason": "Permission denied",
          "is_unreadable": True, "is_kept": True}],
    )  # fmt: skip
    assert [(up.replica(index) / "amounts.py").exists() for index in (0, 1)] == [True, True]
    (up.path / "amounts.py").chmod(0o644)
    assert said("sync").status == 0


def test_a_host_that_cannot_follow_stops_all_or_is_left_behind(up: Folder, say: Say) -> None:
    say("sync")
    stage = up.state(1) / "stage"
    shutil.rmtree(stage)
    stage.write_text("in the way")
    up.write("amounts.py", "AMOUNT = 2\n")
    refused = say("sync")
    assert refused.status == 1
    assert "no rank changed; still on gen 1" in refused.out
    assert "Not a directory" in refused.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 1\n"
    said = say("sync", "--best-effort")
    assert said.status == 0
    assert re.match(r"✓ gen \d  1 file → 1 host \(1 left behind\)", said.out)
    assert "left behind trainers1: " in said.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 2\n"
    assert (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 1\n"
    stale = say("sync", "status").out
    assert re.search(r"trainers1 +1 \(stale\)", stale)
    assert "1 host behind generation" in stale


@pytest.mark.long
def test_a_copy_inside_the_workspace_is_not_copied_into_itself(folder: Folder, say: Say) -> None:
    copy = folder.path / "copy"
    folder.write("monarch.toml", f'[job]\nenv = {{ WORKSPACE_DIR = "{copy}" }}\n')
    folder.monarch("apply")
    try:
        refused = say("sync")
        assert refused.status == 1
        assert f"its copy of {folder.path} lies inside that, in {copy}" in refused.out
        assert f"    /copy/\n  in {folder.path}/.monarchignore" in refused.out
        assert list(copy.iterdir()) == []
        folder.write(".monarchignore", "/copy/\n")
        assert "✓ gen 1  4 files → 1 host" in say("sync").out
        assert sorted(path.name for path in copy.iterdir()) == [
            ".monarchignore", "adding.py", "amounts.py", "monarch.toml",
        ]  # fmt: skip
    finally:
        folder.monarch("kill")


@pytest.mark.long
def test_a_host_that_died_is_named_and_the_others_go_on_if_asked(up: Folder, say: Say) -> None:
    say("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    say("sync")
    dead = up.job.hosts[1]
    os.kill(dead.pid, signal.SIGKILL)
    wait_for(lambda: not dead.is_running, what="its end")
    up.write("amounts.py", "AMOUNT = 3\n")
    refused = say("sync")
    assert refused.status == 1
    assert f"trainers1 (pid {dead.pid}) has ended" in refused.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 2\n"
    said = say("sync", "--best-effort")
    assert said.status == 0, said
    assert "(1 left behind)" in said.out
    assert "left behind trainers1: nobody listens there" in said.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 3\n"

    status = say("sync", "status")
    assert re.search(r"trainers0 +\d ", status.out)
    assert "trainers1: " in status.out
    assert "1 host gave no answer" in status.out
    assert re.search(r"\n1 of 2 hosts on generation \d, the rest not known\n", status.out)
    assert "trainers1: nobody listens there" in status.out
    assert re.search(r"trainers0 .*\n.*nobody listens there", say("status").out, re.DOTALL)
    history = say("sync", "history").out
    assert re.match(r" +gen .*\n\* +\d", history)
    assert "trainers1: nobody listens there" in say("sync", "--dry-run").out
    hosts = say("sync", "--json", "status").json["hosts"]
    assert [bool(host["error"]) for host in hosts] == [False, True]

    assert say("sync", "rollback", "1").status == 1
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 3\n"
    back = say("sync", "rollback", "1", "--best-effort")
    assert "left behind trainers1: nobody listens there" in back.out
    assert back.status == 0, back
    assert "(1 left behind)" in back.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 1\n"


def test_a_copy_that_somebody_deleted_is_brought_again(up: Folder, say: Say) -> None:
    say("sync")
    shutil.rmtree(up.replica(1))
    status = say("sync", "status").out
    assert re.search(r"trainers1 +1 \(deleted\) +- ", status)
    assert "1 host whose copy was deleted: `monarch sync` brings hosts and procs in line" in status
    assert re.match(r"✓ gen 2  3 files → 2 hosts", say("sync").out)
    assert (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 1\n"
    status = say("sync", "status").out
    assert re.search(r"trainers0 +1 \(same as 2\) ", status)
    assert status.endswith("2 hosts, all on generation 2\n")
    assert re.match(r"✓ gen 2  0 files → 2 hosts", say("sync").out)


# Before anything moves


def test_dry_run_without_an_allocation_lists_all(folder: Folder, say: Say) -> None:
    (folder.path / "link").symlink_to("amounts.py")
    lines = say("sync", "--dry-run").out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["new", "new", "link", "new"]
    assert lines[2].endswith("link  to amounts.py")
    assert lines[4].startswith("no allocation is up (`monarch apply`): a first sync would move")
    found = say("sync", "--dry-run", "--json").json["hosts"]
    assert [one["hosts"] for one in found] == [[]]
    assert found[0]["bytes"] == sum(
        (folder.path / name).stat().st_size for name in ("adding.py", "amounts.py", "monarch.toml")
    )


def test_dry_run_says_what_would_change_on_the_hosts(up: Folder, say: Say) -> None:
    for name in ("old_name.txt", "gone.txt", "runs_it.sh"):
        up.write(name, f"this is {name}\n")
    say("sync")
    (up.path / "old_name.txt").rename(up.path / "new_name.txt")
    (up.path / "gone.txt").unlink()
    (up.path / "runs_it.sh").chmod(0o755)
    up.write("amounts.py", "AMOUNT = 22\n")
    up.write("twin1.py", "AMOUNT = 333\n")
    up.write("twin2.py", "AMOUNT = 333\n")
    (found,) = say("sync", "--dry-run", "--json").json["hosts"]
    assert (found["hosts"], found["generation"]) == (["trainers0", "trainers1"], 1)
    assert [(c["action"], c["path"], c["bytes"]) for c in found["changes"]] == [
        ("write", "amounts.py", 12),
        ("delete", "gone.txt", 0),
        ("rename", "new_name.txt", 0),
        ("mode", "runs_it.sh", 0),
        ("new", "twin1.py", 13),
        ("new", "twin2.py", 0),
    ]
    lines = say("sync", "--dry-run").out.splitlines()
    assert lines[2].split() == ["rename", "new_name.txt", "from", "old_name.txt"]
    assert lines[3].split() == ["mode", "runs_it.sh", "755"]
    assert lines[-1] == (
        "would send 25 B at most to trainers0, trainers1 each, which have generation 1: 1 changed, "
        "1 deleted, 1 renamed, 1 of another mode, 2 new"
    )
    assert not (up.replica() / "twin1.py").exists()
    say("sync")
    assert say("sync", "--dry-run").out == (
        "nothing would move to trainers0, trainers1: all is there, as generation 2\n"
    )


def test_an_empty_folder_is_something_to_move(up: Folder, say: Say) -> None:
    (up.path / "old").mkdir()
    say("sync")
    (up.path / "old").rmdir()
    (up.path / "new/inner").mkdir(parents=True)
    lines = say("sync", "--dry-run").out.splitlines()
    assert [line.split() for line in lines[:2]] == [["folder", "new/inner"], ["delete", "old"]]
    assert lines[2].endswith(": 1 made as an empty folder, 1 deleted")
    up.monarch("sync")  # to whom all files are new
    (up.path / "more").mkdir()
    assert re.match(r"✓ gen 3  1 folder → 2 hosts", up.monarch("sync"))
    history = say("sync", "history").out.splitlines()
    assert re.match(r"\* +3 .*  no file: links, modes or folders$", history[1])
    assert "generation 4 is what 2 was" in say("sync", "rollback").out


def test_what_the_store_of_a_host_has_need_not_move(up: Folder, say: Say) -> None:
    say("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    say("sync")
    up.write("amounts.py", "AMOUNT = 1\n")
    (found,) = say("sync", "--dry-run", "--json").json["hosts"]
    assert [(c["action"], c["bytes"]) for c in found["changes"]] == [("write", 0)]


def test_explain(folder: Folder, say: Say) -> None:
    folder.write(".gitignore", "# made here\n*.log\n!keep.log\n")
    folder.write("a.log", "")
    folder.write("keep.log", "")
    left_out = say("sync", "--explain", "a.log")
    assert left_out == Said("a.log: left out: it matches '*.log' (.gitignore:2)\n", 1)
    taken = say("sync", "--explain", "keep.log")
    assert taken.status == 0
    assert "in: '!keep.log' (.gitignore:3) takes it back in" in taken.out
    found = say("sync", "--explain", "a.log", "--json").json
    assert (found["is_in"], found["code"]) == (False, "ignored")
    assert found["rule"] == {"file": ".gitignore", "line": 2, "pattern": "*.log"}


def test_the_folder_of_runs_is_no_part_of_the_workspace(folder: Folder, say: Say) -> None:
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 2 }\n")

    def listed() -> set[str]:
        (found,) = say("sync", "--dry-run", "--json").json["hosts"]
        return {change["path"] for change in found["changes"]}

    before = listed()
    run = new_run("some", folder.path / RUNS)
    assert listed() == before
    why = say("sync", "--explain", f"runs/{run.name}")
    assert why == Said(
        f"runs/{run.name}: left out: `monarch run` keeps its runs in runs, and they stay here; to "
        "bring them along, change runs/.gitignore\n", 1,
    )  # fmt: skip
    folder.write("runs/.gitignore", "*.pt\n")
    assert "runs/.gitignore" in listed()
    assert say("sync", "--explain", f"runs/{run.name}").status == 0


def test_a_package_of_that_name_is_part_of_it(folder: Folder, say: Say) -> None:
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 2 }\n")
    (folder.path / "runs").mkdir()
    folder.write("runs/fast.py", "SPEED = 3\n")
    assert say("sync", "--explain", "runs/fast.py").status == 0


# What was


def test_history_and_rollback(up: Folder, say: Say) -> None:
    say("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    up.write("more.py", "")
    say("sync")
    back = say("sync", "rollback")
    assert back.status == 0
    first, *rest = back.out.splitlines()
    assert re.match(r"✓ gen 3  2 files \(1 deleted\) → 2 hosts  [\d.]+ m?s", first), back.out
    assert "generation 3 is what 1 was; your own files stay as they are" in rest[0]
    assert "`monarch sync` brings them to the hosts again" in rest[1]
    assert "`monarch sync rollback 2` goes back" in rest[1]
    for index in (0, 1):
        assert (up.replica(index) / "amounts.py").read_text() == "AMOUNT = 1\n"
        assert not (up.replica(index) / "more.py").exists()
    assert (up.path / "amounts.py").read_text() == "AMOUNT = 2\n"
    lines = say("sync", "history").out.splitlines()
    assert lines[0].split() == ["gen", "when", "who", "digest", "files"]
    assert lines[1].startswith("*  3  ")
    assert lines[1].endswith("2 files: amounts.py, more.py (same as gen 1)")
    assert "3 files: adding.py, amounts.py, monarch.toml" in lines[3]
    found = say("sync", "history", "--json").json["generations"]
    assert [one["generation"] for one in found] == [3, 2, 1]
    assert found[0]["digest"] == found[2]["digest"] != found[1]["digest"]
    assert found[1]["hosts"] == ["trainers0", "trainers1"]
    assert all(one["can_go_back"] for one in found)
    assert "gen 2" not in say("sync", "history", "--limit", "1").out

    # Forward again, both ways.
    assert "✓ gen 4" in say("sync", "rollback", "2").out
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 2\n"
    assert "the hosts have what generation 2 was" in say("sync", "rollback", "2").out
    say("sync", "rollback", "1")
    assert "✓ gen 6  2 files" in say("sync").out
    assert (up.replica(1) / "more.py").exists()


def test_a_rollback_that_cannot_be_says_why(up: Folder, say: Say) -> None:
    nothing = say("sync", "rollback")
    assert nothing.status == 1
    assert "no generation to go back to" in nothing.out
    assert "nothing was pushed yet" in say("sync", "history").out
    say("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    say("sync")
    unknown = say("sync", "rollback", "9")
    assert unknown.status == 1
    assert "no host can tell what was in generation 9" in unknown.out
    assert "monarch sync history" in unknown.out
    # A store that was trimmed on one host: the other one has it.
    for content in (up.state(0) / "store").iterdir():
        content.unlink()
    assert say("sync", "rollback").status == 0
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 1\n"
    # On both: nothing changes.
    for index in (0, 1):
        staged = up.state(index) / "stage"
        wait_for(lambda at=staged: not list(at.iterdir()), what="what was replaced to be stored")
        for content in (up.state(index) / "store").iterdir():
            content.unlink()
    gone = say("sync", "rollback", "2")
    assert gone.status == 1
    assert "the content of 'amounts.py'" in gone.out
    assert "trimmed" in gone.out
    assert (up.replica(0) / "amounts.py").read_text() == "AMOUNT = 1\n"
    assert (up.replica(1) / "amounts.py").read_text() == "AMOUNT = 1\n"


def test_diff(up: Folder, say: Say) -> None:
    up.write("data.bin", "ab")
    up.write("old.txt", "one\ntwo\n")
    (up.path / "empty").mkdir(0o755)
    say("sync")
    assert say("sync", "diff", "--exit-code") == Said("", 0)
    (up.path / "empty").chmod(0o700)
    (up.path / "full/bare").mkdir(parents=True)
    up.write("amounts.py", "AMOUNT = 2\n")
    (up.path / "data.bin").write_bytes(b"a\0b")
    (up.path / "old.txt").unlink()
    up.write("new.txt", "no end")
    (up.path / "new.txt").write_text("no end")
    (up.path / "adding.py").chmod(0o755)
    (up.path / "link").symlink_to("amounts.py")
    found = say("sync", "diff")
    assert found.status == 0
    assert found.out.splitlines() == [
        "mode of adding.py: 644 in gen 1, 755 here",
        "--- gen 1/amounts.py",
        "+++ here/amounts.py",
        "@@ -1 +1 @@",
        "-AMOUNT = 1",
        "+AMOUNT = 2",
        "binary file data.bin differs: 2 bytes in gen 1, 3 bytes here",
        "mode of empty: 755 in gen 1, 700 here",
        "full/bare: nothing in gen 1, a folder here",
        "link: nothing in gen 1, a link to amounts.py here",
        "--- /dev/null",
        "+++ here/new.txt",
        "@@ -0,0 +1 @@",
        "+no end",
        "\\ No newline at end of file",
        "--- gen 1/old.txt",
        "+++ /dev/null",
        "@@ -1,2 +0,0 @@",
        "-one",
        "-two",
    ]
    assert say("sync", "diff", "--exit-code").status == 1
    say("sync")
    assert say("sync", "diff").out == ""
    assert "+AMOUNT = 2" in say("sync", "diff", "1").out


def test_programs_are_answered_in_objects_by_every_command(up: Folder, say: Say) -> None:
    say("sync")
    up.write("amounts.py", "AMOUNT = 2\n")
    found = say("sync", "--json", "diff").json
    assert (found["event"], found["generation"], found["differs"]) == ("diff", 1, True)
    assert "+AMOUNT = 2" in found["diff"].splitlines()
    assert say("sync", "--json", "diff", "--exit-code").status == 1
    assert say("sync", "--json", "diff", "99").json["event"] == "error"
    for host in up.job.hosts:
        os.kill(host.pid, signal.SIGKILL)
    wait_for(lambda: not up.job.is_running(), what="the hosts to end")
    for command in ("status", "history", "diff", "rollback"):
        said = say("sync", "--json", command)
        assert (said.status, said.json["event"]) == (1, "error")


def test_status_before_anything_was_pushed(up: Folder, say: Say) -> None:
    assert "nothing was pushed yet" in say("sync", "status").out
    say("sync")
    lines = say("sync", "status").out.splitlines()
    assert lines[0].split() == ["host", "generation", "digest", "procs"]
    assert re.fullmatch(r"trainers0 +1 +[0-9a-f]{8} +-", lines[1])
    assert lines[3] == "2 hosts, all on generation 1"


# Live processes


def test_live_processes_go_back_and_a_refusal_changes_none(
    up: Folder, say: Say, command: Callable[..., Program]
) -> None:
    running = command("run", "adding.py", "stop_file=never")
    running.line("amounts [1] on 2 procs", timeout=60)
    lines = say("sync", "status").out.splitlines()
    assert re.fullmatch(r"trainers0 +1 +[0-9a-f]{8} +adding 0", lines[1])
    assert lines[-1] == "2 hosts and 2 procs, all on generation 1"

    up.write("amounts.py", "AMOUNT = 2\n")
    assert "reloaded amounts.py" in say("sync").out
    running.line("amounts [2] on 2 procs")
    assert "reloaded amounts.py" in say("sync", "rollback").out
    running.line("amounts [1] on 2 procs")
    procs = say("sync", "--json", "status").json["hosts"][0]["procs"]
    assert procs == [{"name": "adding 0", "generation": 3}]

    up.write("amounts.py", "X = 1\nAMOUNT = (2\n")
    refused = say("sync")
    assert refused.status == 1
    lines = refused.out.splitlines()
    assert re.fullmatch(r"✗ refused  [\d.]+ m?s  no rank changed; still on gen 3", lines[0])
    assert lines[1:5] == [
        "  amounts.py:2",
        "      AMOUNT = (2",
        "               ^",
        "  SyntaxError: '(' was never closed",
    ]
    assert re.fullmatch(r"  \(said by .*adding 0, adding 1.*\)", lines[5])
    assert len(lines) == 6, "one cause is told once"
    found = say("sync", "--json").json
    assert found["ok"] is False
    (refusal,) = found["refusals"]
    assert (refusal["path"], refusal["line"], refusal["column"]) == ("amounts.py", 2, 10)
    assert {"adding 0", "adding 1"} <= set(refusal["ranks"])
    assert (up.replica() / "amounts.py").read_text() == "AMOUNT = 1\n"

    running.send_signal(signal.SIGINT)
    running.wait()


REFUSING = """    def __reload__(self, change):
        if amounts.AMOUNT == 2:
            raise RuntimeError("too much")

    @endpoint
    def add("""


def test_an_error_on_a_host_names_the_file_of_the_author(up: Folder) -> None:
    up.write("amounts.py", "AMOUNT = 1\n\ndef fail() -> None:\n    raise KeyError('amounts')\n")
    recipe = RECIPE.replace("self.total += amounts.AMOUNT", "amounts.fail()")
    up.write("failing.py", recipe)
    said = CommandFolder(up.path).monarch("run", "failing.py", status=1)
    assert "monarch: KeyError: 'amounts'\namounts.py:4, on rank 0\n" in said, said
    (kept,) = up.path.glob("runs/failing-*/traceback.txt")
    assert f'File "{up.path.resolve()}/amounts.py", line 4' in kept.read_text()
    assert str(up.replica()) not in said


@pytest.mark.long
def test_what_was_shown_and_taken_back_is_what_was_there(
    up: Folder, say: Say, command: Callable[..., Program]
) -> None:
    up.write("adding.py", RECIPE.replace("    @endpoint\n    def add(", REFUSING))
    running = command("run", "adding.py", "stop_file=never")
    running.line("amounts [1] on 2 procs", timeout=60)
    up.write("amounts.py", "AMOUNT = 2\n")
    lines = say("sync").out.splitlines()
    assert re.fullmatch(r"✗ refused  [\d.]+ m?s  taken back; all run the code of gen 1", lines[0])
    taken_back = "the new files were on hosts already, as gen 2; without them it is gen 3"
    assert f"  {taken_back}" in lines
    assert say("sync", "status").out.splitlines()[-1] == "2 hosts and 2 procs, all on generation 3"
    # It is in the history, and nothing to go back to.
    assert say("sync", "history").out.splitlines()[2].endswith("1 file: amounts.py (taken back)")
    found = say("sync", "history", "--json").json["generations"]
    assert [one["is_taken_back"] for one in found] == [False, True, False]
    assert "no generation to go back to" in say("sync", "rollback").out
    refused = say("sync", "rollback", "2")
    assert (refused.status, "generation 2 was taken back" in refused.out) == (1, True)
    up.write("amounts.py", "AMOUNT = 3\n")
    assert "✓ gen 4" in say("sync").out
    assert "generation 5 is what 3 was" in say("sync", "rollback").out
    running.send_signal(signal.SIGINT)
    running.wait()


# Newcomers


def test_without_a_project_file(tmp_path: Path, say: Say, folder: Folder) -> None:
    (folder.path / "monarch.toml").unlink()
    for arguments in (["sync"], ["sync", "--watch"], ["sync", "--dry-run"]):
        said = say(*arguments)
        assert said.status == 2
        assert f"there is no monarch.toml in {tmp_path}" in said.out
        assert "[workspace]" in said.out
        assert "monarch apply" in said.out
    found = say("sync", "--json")
    assert (found.status, found.json["event"]) == (2, "error")


def test_below_the_project_file(folder: Folder, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "deep").mkdir()
    monkeypatch.chdir(folder.path / "deep")
    said = say("sync")
    assert said.status == 2
    assert f"`cd {folder.path}` first" in said.out


def test_a_folder_without_a_project_file_is_synced_where_hosts_are_up_for_it(
    up: Folder, say: Say
) -> None:
    (up.path / "monarch.toml").unlink()
    assert "2 files → 2 hosts" in say("sync").out


@pytest.mark.parametrize(
    ("dirs", "expected"),
    [
        ('["sorce"]', ["monarch.toml:3: [workspace] dirs names 'sorce'", 'mean "source"?']),
        ('["source", "nothing/like/it"]', ["'nothing/like/it'", "does not exist", "Create it"]),
        ('["amounts.py"]', ["is a file, not a folder"]),
        ("[]", ["[workspace] dirs is empty, so there is nothing to bring to the hosts"]),
    ],
)
def test_a_mistyped_workspace_folder(
    dirs: str, expected: list[str], folder: Folder, say: Say
) -> None:
    (folder.path / "source").mkdir()
    folder.write("monarch.toml", f"[workspace]\n# folders\ndirs = {dirs}\n")
    for arguments in (["sync"], ["sync", "--dry-run"], ["sync", "--watch"]):
        said = say(*arguments)
        assert said.status == 2
        for part in expected:
            assert part in said.out


def test_folders_outside_of_the_project_land_under_their_names(folder: Folder, say: Say) -> None:
    project = folder.path / "project"
    for name in ("lib/deep", "project/src"):
        (folder.path / name).mkdir(parents=True)
    folder.write("lib/deep/a.py", "")
    folder.write("project/src/b.py", "")
    folder.write(
        "project/monarch.toml", f'[workspace]\ndirs = [".", "../lib", "{folder.path}/lib/deep"]\n'
    )
    toml = str(project / "monarch.toml")
    said = say("sync", "--dry-run", "--file", toml, "--json").json
    paths = [change["path"] for change in said["hosts"][0]["changes"]]
    assert sorted(paths) == ["deep/a.py", "lib/deep/a.py", "monarch.toml", "src/b.py"]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ('dirs = [".", "lib", "../lib"]', "'lib' and '../lib' would both land in 'lib'"),
        ('ignore = ["!a"]', "a `!` belongs in .monarchignore"),
    ],
)
def test_a_mistake_in_the_workspace_section(
    section: str, expected: str, folder: Folder, say: Say
) -> None:
    for name in ("lib", "project/lib"):
        (folder.path / name).mkdir(parents=True)
    folder.write("project/monarch.toml", f"[workspace]\n{section}\n")
    said = say("sync", "--dry-run", "--file", str(folder.path / "project/monarch.toml"))
    assert said.status == 2
    assert expected in said.out


def test_a_dead_allocation(up: Folder, say: Say) -> None:
    for host in up.job.hosts:
        os.kill(host.pid, signal.SIGKILL)
    wait_for(lambda: not up.job.is_running(), what="the hosts to end")
    for arguments in (["sync"], ["sync", "--watch"], ["sync", "status"], ["sync", "history"]):
        said = say(*arguments)
        assert said.status == 1
        assert "the one that was has ended" in said.out
        assert "`monarch apply`" in said.out
    assert say("sync", "--json").json["event"] == "error"


@pytest.mark.parametrize(
    "arguments",
    [["--watch", "--dry-run"], ["--explain", "x", "--watch"], ["--watch", "status"], ["statsu"]],
    ids=" ".join,
)
def test_what_does_not_go_together_is_refused(arguments: list[str], say: Say) -> None:
    assert say("sync", *arguments).status == 2


@pytest.mark.parametrize("command", [None, *sync.commands])
def test_help_fits_a_terminal(command: str | None, say: Say) -> None:
    said = say("sync", *([command] if command else []), "--help")
    assert said.status == 0
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.long
def test_without_a_terminal_there_are_no_control_codes(up: Folder) -> None:
    said = up.monarch("sync", "-v")
    assert said.startswith("✓ gen 1")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    done = subprocess.run(
        [sys.executable, "-m", "monarch.cli.main", "sync"],
        cwd=up.path, capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert re.fullmatch(rb"ok gen 1  0 files -> 2 hosts  [\d.]+ m?s\n", done.stdout)
