"""First looks at a large workspace: they say so at once, count, and end at the first Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.cli.sync.preview import PathChange, Preview, preview_lines
from monarch.cli.sync.progress_bar import bar_line, scan_text
from monarch_sync import Scanner, Workspace
from monarch_sync.content.digest import LARGE_BYTES
from monarch_sync.progress import Progress, followed_by
from monarch_sync.scanning import readings
from tests.cli.command_folder import CommandFolder
from tests.cli.on_terminal import on_terminal
from tests.support import Program, wait_for

Start = Callable[..., Program]

ENDS_SECONDS = 10.0
"""A fraction of a second where nothing else runs; what is in the way here would take minutes."""

PROJECT = '[job]\nhosts = { trainers = 1 }\n[workspace]\ndirs = ["."]\n'
COMMAND = """
import os, sys, time
from monarch_sync.scanning import readings
os.chdir({folder!r})
{before}
sys.argv = ["monarch", "sync", *{arguments!r}]
from monarch.cli.entry import main
main()
"""
SLOW_FILES = """
read = readings._read_all
def slow(fd, size):
    time.sleep(0.02)
    return read(fd, size)
readings._read_all = slow
"""
SLOW_CONTENT = """
from monarch_sync.progress import _Counted
read = _Counted.read
def slow(self, size=-1):
    time.sleep(0.2)
    return read(self, min(size, 1 << 14))
_Counted.read = slow
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "monarch.toml").write_text(PROJECT)
    return tmp_path


def fill(folder: Path, num_files: int) -> None:
    for number in range(num_files):
        at = folder / f"part{number % 7}"
        at.mkdir(exist_ok=True)
        (at / f"{number}.txt").write_text(str(number))


def test_a_look_counts_paths_and_files_and_names_the_large_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 20)
    (folder / "big.bin").write_bytes(bytes(LARGE_BYTES))
    progress, texts = Progress(), []
    cut = readings.cut

    def looked_at(file: io.RawIOBase, *rest: object) -> object:
        texts.append(scan_text(progress))
        found = cut(file, *rest)  # type: ignore[arg-type]
        texts.append(scan_text(progress))
        return found

    monkeypatch.setattr(readings, "cut", looked_at)
    with followed_by(progress):
        Scanner(Workspace(dirs={folder: ""})).scan()
    assert progress.num_listed == 20 + 7 + 2
    assert progress.num_files == 20 + 2
    assert "big.bin: 0 B of 8.4 MB" in texts[0]
    assert "big.bin: 8.4 MB of 8.4 MB" in texts[1]
    assert "big.bin" not in scan_text(progress)
    assert scan_text(Progress(num_listed=200_000)) == "looking  200,000 paths"


def test_a_name_cannot_steer_the_terminal() -> None:
    progress = Progress(path="/a/\x1b[2Jb", path_bytes=10, path_bytes_read=5)
    assert "\x1b" not in bar_line(progress, 0, 1.0, 0.0, 100)


def test_a_summary_stands_for_many_paths() -> None:
    changes = [PathChange("new", f"data/{number}", 10) for number in range(1000)]
    changes += [PathChange("new", "big.bin", 10**9), PathChange("delete", "old/x")]
    changes += [PathChange("new", f"{number}/x", 1) for number in range(100, 150)]
    lines = list(preview_lines(Preview(["h"], 3, changes), lists_all=False))
    assert len(lines) < 40
    assert any("data/" in line and "1,000 new" in line for line in lines)
    assert any("old/" in line and "1 deleted" in line for line in lines)
    assert any("more folders" in line for line in lines)
    after = lines[lines.index("the largest:") + 1]
    assert "big.bin" in after
    assert "--all lists each path" in lines
    assert lines[-1].startswith("would send")
    assert len(list(preview_lines(Preview(["h"], 3, changes), lists_all=True))) == 1052 + 1


def started(folder: Path, start: Start, before: str, *arguments: str) -> Program:
    return start(COMMAND.format(folder=str(folder), before=before, arguments=list(arguments)))


def counts(program: Program) -> list[str]:
    return [line for line in program.errors if line.startswith(("looking", "reading"))]


@pytest.mark.parametrize(
    ("before", "told"), [(SLOW_FILES, "reading  "), (SLOW_CONTENT, "big.bin: ")]
)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.long
def test_a_look_says_a_word_counts_and_ends_at_the_first_ctrl_c(
    folder: Path, program: Start, before: str, told: str, options: list[str]
) -> None:
    """A few thousand files on a slow disk, or one file of which little comes at a time."""
    fill(folder, 3000)
    if before is SLOW_CONTENT:
        (folder / "big.bin").write_bytes(bytes(4 * LARGE_BYTES))
    one = started(folder, program, before, "--dry-run", *options)
    wait_for(lambda: any(told in line for line in counts(one)), 90.0, lambda: str(one.errors))
    first = counts(one)[-1]
    wait_for(lambda: counts(one)[-1] != first, 60.0, "the count moves")
    pressed = time.monotonic()
    os.kill(one.process.pid, signal.SIGINT)
    assert one.process.wait(60.0) == 130
    assert time.monotonic() - pressed < ENDS_SECONDS
    assert not one.lines, "nothing but the result goes there"


@pytest.mark.long
def test_the_objects_stay_alone(folder: Path, program: Start) -> None:
    fill(folder, 100)
    one = started(folder, program, SLOW_FILES, "--dry-run", "--json")
    assert one.process.wait(90.0) == 0
    wait_for(lambda: bool(one.lines))
    (line,) = one.lines
    assert len(json.loads(line)["hosts"][0]["changes"]) == 101
    assert counts(one)


LONG_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "monarch.runtime.node":
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["monarch", "sync", *{arguments!r}]
from monarch.cli.entry import main
main()
"""


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--explain", "a.py"]])
def test_the_first_word_comes_before_what_asks_hosts_is_imported(
    folder: Path, arguments: list[str]
) -> None:
    (folder / "a.py").touch()
    with on_terminal(folder, script=LONG_IMPORT.format(arguments=arguments)) as shown:
        shown.until("looking at the workspace")
        shown.press("\x03")
        assert shown.end() == 130
        assert shown.text.count("interrupted") == 1


@pytest.mark.long
@pytest.mark.parametrize("arguments", [[], ["--watch"]], ids=["once", "watch"])
@pytest.mark.parametrize("before", [SLOW_FILES, SLOW_CONTENT], ids=["many files", "a large one"])
def test_a_push_that_only_looks_ends_at_the_first_ctrl_c(
    folder: Path, program: Start, before: str, arguments: list[str]
) -> None:
    """Threads that read are not waited for, and nothing on the hosts has to be put back."""
    command = CommandFolder(folder)
    command.monarch("apply")
    try:
        fill(folder, 3000)
        if before is SLOW_CONTENT:
            (folder / "big.bin").write_bytes(bytes(4 * LARGE_BYTES))
        one = started(folder, program, before, *arguments)
        wait_for(lambda: bool(counts(one)), 90.0, lambda: str(one.errors))
        pressed = time.monotonic()
        os.kill(one.process.pid, signal.SIGINT)
        assert one.process.wait(60.0) == 130
        assert time.monotonic() - pressed < ENDS_SECONDS
        wait_for(lambda: "interrupted; nothing was pushed" in one.errors)
        assert not one.lines
        assert "nothing was pushed yet" in command.monarch("sync", "status")
    finally:
        command.monarch("kill")


@pytest.mark.huge
@pytest.mark.timeout(600)
def test_two_hundred_thousand_files_and_twenty_gigabytes(folder: Path, program: Start) -> None:
    (folder / "many").mkdir()
    for number in range(200_000):
        (folder / "many" / str(number)).touch()
    with open(folder / "big.bin", "wb") as file:
        file.truncate(20 << 30)
    one = started(folder, program, "", "--dry-run")
    wait_for(lambda: any("big.bin: " in line for line in counts(one)), 300.0)
    pressed = time.monotonic()
    os.kill(one.process.pid, signal.SIGINT)
    assert one.process.wait(60.0) == 130
    assert time.monotonic() - pressed < ENDS_SECONDS
