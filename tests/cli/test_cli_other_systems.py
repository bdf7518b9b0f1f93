"""The author may have no Linux: what an author and a client need works there, over TCP, with
hosts that do run it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from monarch.tools.network import free_port
from tests.cli.conftest import PROJECT, Folder
from tests.elsewhere import ELSEWHERE
from tests.support import Program

AGENT = """
import sys
from monarch.runtime.entry.host_main import main
sys.argv = ["host", "{url}", "far"]
main()
"""

# A job whose one host is reached over TCP, and is a process that this machine can look at.
FAR = """
import sys
from monarch.job.kinds.process import HostProcess, ProcessJob
from monarch.runtime.ends import process_start

class Far(ProcessJob):
    kind = "far"

    @classmethod
    def _from_data(cls, data):
        job = super()._from_data(data | {"hosts": []})
        job.hosts = [HostProcess(**host) for host in data["hosts"]]
        return job
"""

NOTE = """
job = Far({{"trainers": 1}})
started = process_start.process_start({pid})
job.hosts = [HostProcess("trainers", {url!r}, {pid}, started, {workspace!r}, {log!r})]
job.dump(".monarch/job_state.json")
"""

COMMAND = """
sys.argv = {arguments!r}
from monarch.cli.main import main
main()
"""


@pytest.fixture
def elsewhere(
    program: Callable[..., Program],
    folder: Folder,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Program]:
    """Starts the command on a system without Linux, in a project whose one host is far."""
    far = tmp_path_factory.mktemp("far")
    url = f"tcp://127.0.0.1:{free_port()}"
    # It is not to find the author's files where the author has them.
    agent = program(AGENT.format(url=url), WORKSPACE_DIR=str(far / "copy"))
    folder.write("monarch.toml", PROJECT.replace("trainers = 2", "trainers = 1"))
    monkeypatch.chdir(folder.path)
    about = {"pid": agent.pid, "url": url, "workspace": str(far / "copy")}
    # There, a folder is known by other marks than here.
    noted = program(ELSEWHERE + FAR + NOTE.format(**about, log=str(far / "host.log")))
    assert noted.wait() == 0, noted.story()

    def start(*arguments: str) -> Program:
        return program(ELSEWHERE + FAR + COMMAND.format(arguments=["monarch", *arguments]))

    return start


@pytest.mark.long
def test_a_laptop_without_linux_pushes_watches_and_runs(
    elsewhere: Callable[..., Program], folder: Folder
) -> None:
    first = elsewhere("sync")
    assert first.wait() == 0, first.story()
    assert "gen 1" in first.story()
    watch = elsewhere("sync", "--watch")
    watch.line("watching")
    running = elsewhere("run", "adding.py", "num_steps=100000")
    running.line("amounts [1]")
    folder.write("amounts.py", "AMOUNT = 2\n")
    running.line("amounts [2]")
    status = elsewhere("status")
    assert status.wait() == 0, status.story()
    running.send_signal(signal.SIGINT)
    assert running.wait() == 130, running.story()
    watch.send_signal(signal.SIGINT)
    assert watch.wait() == 0, watch.story()
    killed = elsewhere("kill", "--yes")
    assert killed.wait() == 0, killed.story()
