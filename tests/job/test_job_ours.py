"""A job's state that names what is not the job's: nothing of that is removed or ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config import runtime_dir
from monarch.errors import JobError
from monarch.job import ProcessJob, job_loads
from monarch.job.state_folder import sign
from monarch.runtime.ends.process_start import process_start
from monarch.runtime.hosts import starter
from monarch.runtime.hosts.directory import make_job_directory, remove_job_directory


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user's that is no host agent."""
    child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def state_of(directory: str, pid: int, **changed: Any) -> bytes:
    host = {
        "mesh": "h", "url": f"ipc://{directory}/h0/host", "pid": pid,
        "started": process_start(pid) or 1, "workspace": "/tmp/x",
        "log": f"{directory}/h0/host.log",
    } | changed  # fmt: skip
    return sign("job", {
        "version": 2, "kind": "process", "bases": [], "apply_id": "x", "meshes": {"h": 1},
        "env": {}, "preload": [], "secret": "00" * 32, "directory": directory, "hosts": [host],
    })  # fmt: skip


@pytest.fixture(params=["a folder", "of the name of a job's", "in the runtime folder", "a link"])
def precious(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's, as a state file may name it, by what is wrong with it."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "file").write_text("years of work")
    named = folder
    if request.param == "of the name of a job's":
        named = tmp_path / "job-0123456789ab"
        folder.rename(named)
    elif request.param != "a folder":
        named = Path(runtime_dir()) / f"job-{os.getpid()}"
        if request.param == "a link":
            named.symlink_to(folder)
        else:
            named = folder.rename(named)
    yield named
    if named.is_symlink():
        named.unlink()
    elif named.parent == Path(runtime_dir()):
        (named / "file").unlink()
        named.rmdir()


def test_a_folder_that_no_job_made_is_not_removed(
    precious: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    job = job_loads(state_of(str(precious), sleeper.pid))
    with pytest.raises(JobError, match="nothing was ended or removed"):
        job.kill()
    with pytest.raises(JobError, match="nothing was started"):
        job.repair()
    assert (precious / "file").exists()
    assert sleeper.poll() is None


def test_a_process_that_is_no_host_agent_is_not_ended(sleeper: subprocess.Popen[bytes]) -> None:
    directory = make_job_directory(f"{os.getpid()}")
    job = job_loads(state_of(directory, sleeper.pid))
    assert isinstance(job, ProcessJob)
    assert not job.is_running()
    job.kill()
    assert sleeper.poll() is None
    assert not os.path.exists(directory)


@pytest.mark.parametrize(
    "changed", [{"url": "ipc:///tmp/elsewhere/host"}, {"log": "/var/log/syslog"}]
)
def test_a_host_outside_of_its_jobs_folder_is_no_jobs_state(changed: dict[str, str]) -> None:
    with pytest.raises(JobError, match="damaged"):
        job_loads(state_of("/tmp/job-1", 1, **changed))


def test_the_far_end_of_a_login_removes_and_ends_nothing_that_is_not_its_own(
    precious: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    order = {"pid": sleeper.pid, "started": process_start(sleeper.pid) or 0}
    with pytest.raises(starter._Failure, match="nothing was ended or removed"):
        starter._end(**order, directory=str(precious))
    assert (precious / "file").exists()
    mine = make_job_directory(f"{os.getpid()}-2", "host")
    assert starter._end(**order, directory=mine) == {"left": []}
    assert sleeper.poll() is None
    assert not os.path.exists(os.path.dirname(mine))


def test_a_job_of_several_hosts_loses_its_folder_with_the_last() -> None:
    one, other = (make_job_directory(f"{os.getpid()}-3", name) for name in ("one", "other"))
    remove_job_directory(one)
    assert os.path.isdir(other)
    remove_job_directory(other)
    assert not os.path.exists(os.path.dirname(other))
