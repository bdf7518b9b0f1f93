"""What goes wrong with hosts that one logs in to, in ssh's own words and in seconds."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import SSHJob
from monarch.job.doctor.probe_session import probe_by_login
from monarch.job.kinds.login_session import LoginSession
from monarch.runtime.process import is_bootstrapped
from tests.job.kinds import FAKES, MARK, processes_marked
from tests.job.sshd import Sshd
from tests.support import wait_for

AT_ONCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    if is_bootstrapped():
        shutdown_context().get()


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    # Of a login that was cut off, the far end notices, and ends its host.
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


@pytest.fixture
def fake_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    made = Sshd(tmp_path)
    yield made
    made.close()


def refusal(job: SSHJob, *hosts: str) -> str:
    job.add_mesh("trainers", hosts)
    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        job.state(cached_path=None)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    return str(caught.value)


def test_a_host_belongs_to_one_mesh_once() -> None:
    job = SSHJob()
    job.add_mesh("trainers", ["gpu1", "gpu2"])
    with pytest.raises(ValueError, match="'gpu2' is listed twice"):
        job.add_mesh("evaluators", ["gpu2"])
    with pytest.raises(ValueError, match="'gpu3' is listed twice"):
        job.add_mesh("evaluators", ["gpu3", "gpu3"])
    with pytest.raises(ValueError, match="not the name of a host"):
        job.add_mesh("evaluators", ["-oProxyCommand=true"])
    with pytest.raises(ValueError, match="at least one host"):
        job.add_mesh("evaluators", [])


def test_no_ssh_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot run `ssh`: No such file or directory" in refusal(SSHJob(), "gpu-of-nobody")


@pytest.mark.long
@pytest.mark.usefixtures("fake_ssh")
def test_one_unknown_host_keeps_all_from_staying(mark: str) -> None:
    job = SSHJob(sys.executable, monarch_port=0, env={MARK: mark})
    told = refusal(job, "gpu1", "nosuch", "gpu2")
    assert "on nosuch: ssh: Could not resolve hostname nosuch" in told
    assert "gpu1" not in told


@pytest.mark.usefixtures("fake_ssh")
def test_a_python_that_is_not_there() -> None:
    assert "on gpu1, gpu2: " in (told := refusal(SSHJob("no-such-python"), "gpu1", "gpu2"))
    assert "no-such-python" in told
    assert "not found" in told


@pytest.mark.usefixtures("fake_ssh")
def test_a_python_that_is_too_old_says_which_it_is(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 6, 8); '
        'exec(eval(sys.stdin.readline()))"\n'
    )
    old.chmod(0o755)
    told = refusal(SSHJob(str(old)), "gpu1")
    assert "which is Python 3.6; Python 3.10 or later is needed" in told


@pytest.mark.usefixtures("fake_ssh")
def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = refusal(SSHJob(sys.executable, monarch_port=port), "gpu1")
    assert f"cannot listen at port {port}: Address already in use" in told


# A login whose output is closed, and which does not end.
_SILENT = ("sh", "-c", "exec > /dev/null; exec sleep 60", "sh")


def test_a_login_that_says_nothing_more_and_stays_is_not_waited_for() -> None:
    login = LoginSession(_SILENT, "python3", words_seconds=0.1)
    try:
        told = login.answer(time.monotonic() + 20)["error"]
    finally:
        login.hang_up()
        assert not login.has_ended(time.monotonic())
    assert told == "the login says nothing more, and does not end"


def test_a_probe_that_says_nothing_more_and_stays_is_not_waited_for() -> None:
    probe = probe_by_login(_SILENT, "python3", words_seconds=0.1)
    try:
        told = probe.answer(time.monotonic() + 20)["error"]
    finally:
        probe.close()
    assert told == "the login says nothing more, and does not end"


@pytest.mark.system
def test_a_wrong_user(sshd: Sshd) -> None:
    told = refusal(SSHJob(sys.executable, ["-F", str(sshd.config)]), "nobody-here@gpu1")
    assert "Permission denied (publickey" in told


@pytest.mark.system
def test_a_host_key_that_has_changed(sshd: Sshd) -> None:
    sshd.trust(sshd.make_key("another"))
    told = refusal(SSHJob(sys.executable, ["-F", str(sshd.config)]), "gpu1")
    assert "Host key verification failed" in told
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in told


@pytest.mark.system
def test_a_port_at_which_no_sshd_listens(sshd: Sshd) -> None:
    options = ["-F", str(sshd.config), "-o", "Port=1"]
    assert "port 1: Connection refused" in refusal(SSHJob(sys.executable, options), "gpu1")


@pytest.mark.system
def test_the_secret_is_in_no_argument_and_no_environment(sshd: Sshd, mark: str) -> None:
    job = SSHJob(
        sys.executable, ["-F", str(sshd.config)], monarch_port=0, env={MARK: mark}
    )  # fmt: skip
    job.add_mesh("trainers", ["gpu1"])
    try:
        job.state(cached_path=None).trainers.initialized.get(timeout=60)
        secret = job._secret.hex().encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                for name in ("cmdline", "environ"):
                    try:
                        assert secret not in (entry / name).read_bytes()
                    except OSError:
                        continue  # It has ended.
    finally:
        job.kill()
