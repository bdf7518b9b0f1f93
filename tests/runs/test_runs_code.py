"""What a run tells of a generation is what the hosts have as that, whatever was saved since."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from monarch.runs.record.code import RunCode, RunCodeChange
from monarch.runs.record.record import Record
from monarch.runtime.workspace.pushing.host_history import HeldChanges
from monarch_sync import Replica, Workspace, sync_local
from monarch_sync.errors import ContentGone, GenerationUnknown
from monarch_sync.messages import AskChanges, AskContent, Changes, Piece, decode, encode
from monarch_sync.tree.entry import Entry


class Shown:
    """A display, as a list."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def alarm(self, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None: ...


class Hosts:
    """One host, in this process; its project, and what it remembers."""

    def __init__(self, project: Path, replica: Path) -> None:
        self.project = project
        self.replica = Replica(replica)
        self.num_read = 0
        self.is_silent = False

    @property
    def workspace(self) -> Workspace:
        return Workspace({self.project: ""})

    def push(self, **files: str) -> int:
        for name, text in files.items():
            (self.project / f"{name}.py").write_text(text)
        return sync_local(self.workspace, self.replica).generation

    def changes(self, since: int, generation: int) -> HeldChanges:
        reply = decode(encode(self.replica.handle(AskChanges(since, generation))))
        if self.is_silent or not isinstance(reply, Changes):
            raise GenerationUnknown(generation)
        return HeldChanges.of(reply)

    def content(self, entry: Entry) -> bytes:
        self.num_read += 1
        reply = self.replica.handle(AskContent(entry.digest, 0, max(1, entry.size)))
        if not isinstance(reply, Piece):
            raise ContentGone(entry.path, 1)
        return reply.data


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("def loss():\n    return 1\n")
    (project / "data.bin").write_bytes(bytes(range(256)))
    hosts = Hosts(project, tmp_path / "replica")
    with closing(hosts.replica):
        assert hosts.push() == 1
        yield hosts


@pytest.fixture
def code(hosts: Hosts) -> RunCode:
    return RunCode(hosts, hosts.workspace, 1)


def told(change: RunCodeChange | None) -> RunCodeChange:
    assert change is not None
    return change


def test_a_generation_is_told_with_its_diff_and_its_time(hosts: Hosts, code: RunCode) -> None:
    before = code.digest
    assert code.move_to(1) is None
    saved = time.time()
    hosts.push(model="def loss():\n    return 2\n", new="x = 1\n")
    change = told(code.move_to(2))
    assert change.files == ["model.py", "new.py"]
    assert "-    return 1\n+    return 2" in change.diff
    assert "+++ b/new.py" in change.diff
    assert abs(change.saved_at - saved) < 60
    assert change.digest == code.digest != before != ""
    assert code.move_to(2) is None


def test_what_was_saved_meanwhile_belongs_to_a_later_generation(
    hosts: Hosts, code: RunCode
) -> None:
    hosts.push(model="a = 1\n")
    hosts.push(loss="b = 1\n")
    (hosts.project / "notes.py").write_text("not pushed\n")
    assert told(code.move_to(2)).files == ["model.py"]
    assert told(code.move_to(3)).files == ["loss.py"]
    assert "+b = 1" in told(RunCode(hosts, hosts.workspace, 2).move_to(3)).diff


def test_generations_that_no_step_ran_are_told_with_the_next(hosts: Hosts, code: RunCode) -> None:
    hosts.push(model="a = 1\n")
    hosts.push(model="a = 2\n")
    hosts.push(loss="b = 1\n")
    change = told(code.move_to(4))
    assert change.files == ["loss.py", "model.py"]
    assert "+a = 2" in change.diff
    assert "a = 1" not in change.diff


@pytest.mark.parametrize("again", ["another text\n", "a = 1\n"])
def test_a_file_that_was_saved_again_tells_no_time(hosts: Hosts, code: RunCode, again: str) -> None:
    hosts.push(model="a = 1\n")
    path = hosts.project / "model.py"
    path.write_text(again)
    later = time.time() + 5
    os.utime(path, (later, later))
    assert told(code.move_to(2)).saved_at == 0


def test_the_way_back_to_an_earlier_state_tells_no_time(hosts: Hosts, code: RunCode) -> None:
    hosts.push(model="a = 1\n")
    code.move_to(2)
    path = hosts.project / "model.py"
    path.write_text("def loss():\n    return 1\n")
    hosts.push()
    path.write_text("a = 1\n")
    long_ago = time.time() - 50
    os.utime(path, (long_ago, long_ago))
    assert told(code.move_to(3)).saved_at == 0


def test_a_file_that_was_moved_tells_no_time(hosts: Hosts, code: RunCode) -> None:
    path = hosts.project / "model.py"
    hosts.push(model="a = 1\n")
    assert told(code.move_to(2)).saved_at > 0
    saved = time.time() - 25
    os.utime(path, (saved, saved))
    path.rename(hosts.project / "network.py")  # which changes its ctime alone
    hosts.push()
    change = told(code.move_to(3))
    assert (change.files, change.saved_at) == (["model.py", "network.py"], 0)


def test_a_time_with_a_hold_in_it_is_left_out(hosts: Hosts, code: RunCode, tmp_path: Path) -> None:
    shown = Shown()
    record = Record(tmp_path / "run", shown)
    record.code = code
    record.metrics(1, 9, {"generation": 1.0})
    for number, kind in ((2, "held"), (3, "mended")):
        hosts.push(model=f"a = {number}\n")
        record.note(kind, "")
        record.metrics(number, 9, {"generation": float(number)})
    changes = [line for line in shown.messages if line.startswith("generation ")]
    assert changes[0] == "generation 2 from step 2: model.py"
    assert "ms after the save" in changes[1]


def test_what_was_pushed_before_the_first_step_is_no_news(
    hosts: Hosts, code: RunCode, tmp_path: Path
) -> None:
    shown = Shown()
    record = Record(tmp_path / "run", shown)
    record.code = code
    hosts.push(model="a = 1\n")
    record.metrics(1, 9, {"generation": 2.0})
    hosts.push(loss="b = 1\n")
    record.metrics(2, 9, {"generation": 3.0})
    assert [line.partition(",")[0] for line in shown.messages] == [
        "generation 3 from step 2: loss.py"
    ]


def test_what_is_no_text_or_gone_is_told_by_name(hosts: Hosts, code: RunCode) -> None:
    (hosts.project / "data.bin").write_bytes(b"\xff\xfe")
    (hosts.project / "model.py").unlink()
    hosts.push(large="x = 1\n" * 100_000)
    change = told(code.move_to(2))
    assert change.files == ["data.bin", "large.py", "model.py"]
    assert "-    return 1" in change.diff
    assert "data.bin has changed" in change.diff
    assert "large.py has changed" in change.diff


def test_where_nobody_can_tell_the_next_generation_tells_both(hosts: Hosts, code: RunCode) -> None:
    hosts.push(model="a = 1\n")
    hosts.is_silent = True
    assert code.move_to(2) is None
    hosts.is_silent = False
    hosts.push(loss="b = 1\n")
    assert told(code.move_to(3)).files == ["loss.py", "model.py"]


def test_of_many_files_only_as_much_is_read_as_is_told(hosts: Hosts, code: RunCode) -> None:
    hosts.push(**{f"f{number:03d}": "x\n" * 100 for number in range(300)})
    change = told(code.move_to(2))
    assert len(change.files) == 300
    assert len(change.diff.splitlines()) == 401
    assert change.diff.endswith("... and more, and 296 more files")
    assert hosts.num_read < 10


@pytest.mark.long
def test_a_run_tells_in_a_line_of_a_change_of_many_files(
    hosts: Hosts, code: RunCode, tmp_path: Path
) -> None:
    shown = Shown()
    record = Record(tmp_path / "run", shown)
    record.code = code
    record.metrics(1, 9, {"generation": 1.0})
    for name in (*(f"f{number:04d}" for number in range(5000)), "a\nb", "c\udcff"):
        (hosts.project / name).write_text("x\n")
    hosts.push()
    record.metrics(2, 9, {"generation": 2.0})
    hour_ago = time.time() - 3600
    (hosts.project / "late").write_text("x\n")
    os.utime(hosts.project / "late", (hour_ago, hour_ago))
    hosts.push()
    record.metrics(3, 9, {"generation": 3.0})
    changes = [line for line in shown.messages if line.startswith("generation ")]
    assert changes[0].startswith(r"generation 2 from step 2: a\nb, c\xff, f0000 and 4,999 more, ")
    assert changes[1] == "generation 3 from step 3: late"


def test_files_that_no_process_has_loaded_are_not_news_of_a_run(
    hosts: Hosts, tmp_path: Path
) -> None:
    shown, newest = Shown(), 1
    record = Record(tmp_path / "run", shown)
    record.code = RunCode(hosts, hosts.workspace, 1, lambda: newest)
    record.metrics(1, 9, {"generation": 1.0})
    (hosts.project / "run.log").write_text("a line\n")
    hosts.push()
    record.metrics(2, 9, {"generation": 2.0})
    newest = 3
    hosts.push(model="a = 1\n")
    record.metrics(3, 9, {"generation": 3.0})
    changes = [line for line in shown.messages if line.startswith("generation ")]
    assert len(changes) == 1
    assert changes[0].startswith("generation 3 from step 3: model.py, run.log")
