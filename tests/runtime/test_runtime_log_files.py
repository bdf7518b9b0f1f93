"""Everything that procs print is in files on their host, and reports say where."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.config import configured
from monarch.runtime import process
from monarch.runtime.node import Node
from monarch.runtime.output import log_sender
from monarch.runtime.output.log_files import LogFile, LogFiles
from monarch.runtime.output.log_sender import LastWords, LogSender
from tests.actors import Echo
from tests.support import Printed, wait_for

SECONDS = 60.0
DOTS = "." * 80


class Prints(Actor):
    @endpoint
    def lines(self, count: int, start: int = 0) -> None:
        for number in range(start, start + count):
            print(f"line {number}")

    @endpoint
    def flood(self, count: int) -> None:
        for number in range(count):
            print(f"line {number} {DOTS}")

    @endpoint
    def then_exit(self, count: int) -> None:
        self.lines(count)
        sys.stdout.write("without an end")
        sys.stdout.flush()
        os._exit(3)

    @endpoint
    def child(self) -> Any:
        return this_host().spawn_procs().spawn("child", Echo)


def only_file(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"**/{name}")
    return path


def test_a_file_a_rank_private_to_the_user(tmp_path: Path) -> None:
    with configured(log_dir=str(tmp_path / "logs")):
        files = LogFiles()
        for rank in range(2):
            file = files.file("uid", "train/ers", rank)
            assert file.path == ""
            file.write(b"one\n")
            file.write(b"two\n")
            file.close()
            assert Path(file.path).read_bytes() == b"one\ntwo\n"
        other = files.file("another uid", "train/ers", 0)
        other.write(b"other\n")
        other.close()
    paths = sorted(tmp_path.glob("logs/*/*/*"))
    assert {f"{path.parent.name}/{path.name}" for path in paths} == {
        "train_ers/0.log",
        "train_ers/0.log.times",
        "train_ers/1.log",
        "train_ers/1.log.times",
        "train_ers-2/0.log",
        "train_ers-2/0.log.times",
    }
    for path in (*paths, paths[0].parent, paths[0].parent.parent, tmp_path / "logs"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_a_file_is_bounded_and_keeps_what_is_newest(tmp_path: Path) -> None:
    with configured(log_dir=str(tmp_path), log_file_bytes=2000):
        file = LogFiles().file("uid", "mesh", 0)
        for number in range(1000):
            file.write(b"line %04d\n" % number)
        file.close()
    old, new = Path(f"{file.path}.1").read_bytes(), Path(file.path).read_bytes()
    assert len(old) + len(new) <= 2000
    lines = (old + new).splitlines()
    assert lines == [b"line %04d" % number for number in range(1000 - len(lines), 1000)]


def test_no_files_if_none_are_wanted(tmp_path: Path) -> None:
    with configured(log_dir=str(tmp_path), log_file_bytes=0):
        file = LogFiles().file("uid", "mesh", 0)
        file.write(b"line\n")
    assert (file.path, list(tmp_path.iterdir())) == ("", [])


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("not a folder")
    with configured(log_dir=str(tmp_path / "taken")):
        files = LogFiles()
        for rank in range(2):
            file = files.file("uid", "mesh", rank)
            file.write(b"line\n")
            file.write(b"line\n")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_meshes_of_one_name_have_a_folder_each(tmp_path: Path) -> None:
    with configured(log_dir=str(tmp_path)):
        files = LogFiles()
        names = [
            os.path.basename(files.directory_of(f"uid {number}", name))
            for number, name in enumerate(["mesh", "mesh-2", "mesh", "mesh", "mesh-2", "mesh-2"])
        ]
    assert names == ["mesh", "mesh-2", "mesh-3", "mesh-4", "mesh-2-2", "mesh-2-3"]


def test_a_folder_for_one_more_mesh_of_a_name_is_found_at_once(tmp_path: Path) -> None:
    asked: list[object] = []

    class Taken(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            asked.append(name)
            return super().__contains__(name)

    with configured(log_dir=str(tmp_path)):
        files = LogFiles()
        files._taken = Taken()
        for number in range(100):
            files.directory_of(f"uid {number}", "mesh")
    assert 0 < len(asked) < 300


def test_old_runs_are_removed_and_running_ones_are_not(tmp_path: Path) -> None:
    with configured(log_dir=str(tmp_path)):
        first = LogFiles().file("uid", "mesh", 0)
        first.write(b"line\n")
        first.close()
        mine = Path(first.path).parent.parent
        machine = mine.name.split("-")[2]
        ended = subprocess.Popen(["true"])
        ended.wait()
        for number in range(30):
            (tmp_path / f"20260101-0000{number:02d}-{machine}-{ended.pid}").mkdir()
        ancient = tmp_path / f"20260102-000000-{machine}-{ended.pid}"
        ancient.mkdir()
        os.utime(ancient, (0, 0))
        (tmp_path / "something else").mkdir()
        another = LogFiles().file("uid", "mesh", 1)
        another.write(b"line\n")
        another.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert mine.name in left
    assert "something else" in left
    assert ancient.name not in left
    assert sum(name.startswith("20260101") for name in left) == 19


def _delay_writes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Until so much later than a death was noticed, the disk takes nothing."""
    is_noticed, is_over = threading.Event(), threading.Event()
    write, end = LogFile.write, LogSender.end

    def slow_write(self: LogFile, lines: bytes) -> None:
        assert is_noticed.wait(SECONDS)
        is_over.wait(seconds)
        is_over.set()
        write(self, lines)

    def noticed_end(self: LogSender, uid: str) -> LastWords:
        is_noticed.set()
        return end(self, uid)

    monkeypatch.setattr(LogFile, "write", slow_write)
    monkeypatch.setattr(LogSender, "end", noticed_end)


def test_the_report_of_a_death_says_where_the_output_is(
    faults: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Printed(monkeypatch)
    _delay_writes(monkeypatch, 0.1)
    # Where the machine is busy, the disk may take longer.
    logs = process.current().host_agent.logs  # type: ignore[attr-defined]
    for patience in ("patience_seconds", "num_looks_at_disk"):
        monkeypatch.setattr(logs, patience, 10**4)
    prints = this_host().spawn_procs({"gpus": 2}, name="dying").spawn("prints", Prints)
    with pytest.raises(SupervisionError) as caught:
        prints.slice(gpus=1).then_exit.call_one(500).get(timeout=SECONDS)
    failure = caught.value.failure
    assert failure is not None
    assert failure.last_output[-2:] == ("line 499", "without an end")
    path = Path(failure.log_file)
    assert path.name == "1.log"
    assert path.read_text() == "".join(f"line {n}\n" for n in range(500)) + "without an end"
    assert str(path) in failure.report()
    wait_for(lambda: faults)
    assert str(path) in faults[0].report()
    printed.wait_for("without an end\n")
    # Each once, though the report has some of them too.
    assert printed.lines() == [
        *(f"[prints 1] line {number}" for number in range(500)),
        "[prints 1] without an end",
    ]


class StillDisk:
    """A host whose disk has taken nothing for long, when two procs die that have just printed their
    last words. It goes on after ``num_looks`` at whether it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_looks = 10**9
        self.num_looked = 0
        self._goes_on = threading.Event()
        is_writing = threading.Event()

        def write(file: LogFile, lines: bytes) -> None:
            is_writing.set()
            assert self._goes_on.wait(SECONDS)

        monkeypatch.setattr(LogFile, "write", write)
        self._node = Node("host")
        self._node.start()
        self.sender = LogSender(self._node, "host", lambda: None, look_seconds=0.001)
        opened = [self.sender.open(f"proc {rank}", "m", "m", rank, "") for rank in range(2)]
        os.write(opened[0][0], b"first words\n")
        assert is_writing.wait(SECONDS)
        for ends in opened:
            os.write(ends[0], b"last words\n")
            for end in ends:
                os.close(end)
        self._now = time.monotonic() + 1.0
        clock = types.SimpleNamespace(monotonic=self._look)
        monkeypatch.setattr(log_sender, "time", clock)
        self.sender.patience_seconds = 10.0**9

    def _look(self) -> float:
        self.num_looked += 1
        if self.num_looked == self.num_looks:
            self._goes_on.set()
        return self._now

    def close(self) -> None:
        self._goes_on.set()
        self.sender.close()
        self._node.close()


@pytest.fixture
def still_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[StillDisk]:
    disk = StillDisk(monkeypatch)
    yield disk
    disk.close()


def test_a_write_that_began_long_before_a_death_has_its_time_to_end(still_disk: StillDisk) -> None:
    still_disk.num_looks = 3
    assert still_disk.sender.end("proc 0").lines == ("first words", "last words")


def test_a_disk_that_stands_still_holds_up_one_report_and_not_each(still_disk: StillDisk) -> None:
    assert still_disk.sender.end("proc 0").lines == ("first words",)
    before = still_disk.num_looked
    assert still_disk.sender.end("proc 1").lines == ()
    assert still_disk.num_looked <= before + 2


@pytest.mark.long
def test_what_procs_of_actors_print_arrives_too(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Printed(monkeypatch)
    parent = this_host().spawn_procs().spawn("parent", Prints)
    child = parent.child.call_one().get(timeout=SECONDS)
    child.print.call_one("from below").get(timeout=SECONDS)
    printed.wait_for(r"\[child 0\] from below\n")


@pytest.mark.long
def test_a_client_that_stops_reading_delays_no_actor_and_gets_the_end(tmp_path: Path) -> None:
    num_lines = 60_000
    script = f"""
    from pathlib import Path
    from monarch.actor import *
    from tests.runtime.test_runtime_log_files import Prints
    prints = this_host().spawn_procs({{"gpus": 2}}).spawn("prints", Prints)
    prints.flood.call({num_lines}).get()
    Path({str(tmp_path / "printed")!r}).touch()
    """
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MONARCH_LOG_DIR": str(tmp_path / "logs")},
    )
    with client:
        try:
            # Nobody reads what it prints, and yet the actors come to their end.
            wait_for((tmp_path / "printed").exists, timeout=60)
            assert client.stdout is not None
            printed = client.stdout.read().splitlines()
            assert client.wait(SECONDS) == 0
        finally:
            client.kill()
    first = []
    for rank in range(2):
        mine = [line for line in printed if line.startswith(f"[prints {rank}] ")]
        lines = [line for line in mine if "dropped" not in line]
        dropped = [line for line in mine if "dropped" in line]
        first.append(lines[0])
        assert lines[-1] == f"[prints {rank}] line {num_lines - 1} {DOTS}"
        num_dropped = sum(int(line.split()[3].replace(",", "")) for line in dropped)
        assert num_dropped > 0
        assert len(lines) + num_dropped == num_lines
        path = only_file(tmp_path, f"{rank}.log")
        assert f"they are in {path}" in dropped[0]
        assert path.read_text() == "".join(f"line {n} {DOTS}\n" for n in range(num_lines))
    # The rank that begins later may find all room taken, so that its first lines are the oldest.
    assert {f"[prints {rank}] line 0 {DOTS}" for rank in range(2)} & set(first)
