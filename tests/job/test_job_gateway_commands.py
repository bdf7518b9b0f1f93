"""All commands through one machine, as from a laptop by a login host."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.runs.record.folder import runs_in
from tests.cli.command_folder import CommandFolder
from tests.cli.conftest import RECIPE
from tests.job.kinds import FAKES, MARK, processes_marked
from tests.support import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

_TOML = """
[job]
kind = "ssh"
hosts = {{ trainers = ["gpu1", "gpu2"] }}
env = {{ {variable} = "{mark}" }}
[job.ssh]
python = "{python}"
port = 0
gateway = "gpu0"
"""


class Laptop(CommandFolder):
    """A project whose hosts are behind gpu0. ``logins`` has the arguments of each ssh."""

    def __init__(self, path: Path, mark: str) -> None:
        super().__init__(path)
        self.logins = path.parent / "logins"
        self.logins.touch()
        self.bin = path.parent / "bin"
        self.bin.mkdir()
        ssh = self.bin / "ssh"
        ssh.write_text(f'#!/bin/sh\necho "$*" >> {self.logins}\nexec {FAKES}/ssh "$@"\n')
        ssh.chmod(0o755)
        toml = _TOML.format(variable=MARK, mark=mark, python=sys.executable)
        self.write("monarch.toml", toml)
        self.write(
            "adding.py", RECIPE.replace("self.total +=", "print('adding up'); self.total +=")
        )
        self.write("amounts.py", "AMOUNT = 1\n")

    def through(self, *arguments: str) -> str:
        """What a command says, which has logged in to the gateway."""
        self.logins.write_text("")
        said = self.monarch(*arguments)
        assert " gpu0" in self.logins.read_text(), said
        return said


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


@pytest.fixture
def laptop(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    (tmp_path / "project").mkdir()
    made = Laptop(tmp_path / "project", mark)
    monkeypatch.setenv("PATH", str(made.bin), prepend=":")
    made.monarch("apply")
    yield made
    made.monarch("kill", "--yes")


def test_commands_pass_the_gateway(laptop: Laptop) -> None:
    assert "2 hosts" in laptop.through("sync")
    assert "adding.py" in laptop.through("exec", "--all", "ls")
    assert "gpu1" in laptop.through("hosts")
    said = laptop.through("run", "--detach", "adding.py", f"stop_file={laptop.path}/stop")
    (run,) = runs_in(laptop.path / "runs")
    assert run.name in said
    wait_for(lambda: run.name in laptop.through("status"), 60, what="the run to be seen")
    assert "running" in laptop.monarch("runs", "ls")
    wait_for(lambda: "adding up" in laptop.through("logs"), 60, what="what ranks print")
    laptop.through("hang")
    assert "adder, ranks 0-1" in laptop.through("stacks")
    assert laptop.through("sync")
    assert "ended" in laptop.through("kill", "--yes")
