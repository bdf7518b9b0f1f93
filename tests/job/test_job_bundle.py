"""Hosts that have a Python and no monarch, or another one."""

from __future__ import annotations

import base64
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, endpoint, shutdown_context
from monarch.errors import JobError
from monarch.job import JobTrait, SlurmJob, SSHJob
from monarch.job.bundle import bundle_offer
from monarch.job.bundle.bundle import Bundle, bundle_for, bundle_line, known_bundles
from monarch.job.kinds import login_session
from monarch.job.kinds.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from monarch.runtime.hosts import bundle_place
from monarch.runtime.process import is_bootstrapped
from monarch.runtime.workspace.packages.python_here import platforms, python_tag
from monarch.tools.network import free_port
from tests.job.fakes.kube_server import KubeServer
from tests.job.kinds import FAKES, MARK, processes_marked
from tests.support import wait_for


class Where(Actor):
    @endpoint
    def where(self) -> str:
        import monarch

        return str(monarch.__file__)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The author's cache, in which the bundle for this Python is."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        bundle_for(python_tag(), platforms())
        yield folder


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, made: Path, tmp_path: Path) -> Iterator[list[str]]:
    """The kinds of Python that bundles were sent for. Logins have a home of their own."""
    found: list[str] = []

    def noted_line(request: dict[str, object]) -> tuple[str, str]:
        found.append(str(request["tag"]))
        return bundle_line(request)

    monkeypatch.setattr(login_session, "bundle_line", noted_line)
    monkeypatch.setattr(bundle_offer, "bundle_line", noted_line)
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    yield found
    if is_bootstrapped():
        shutdown_context().get()


def _bare(folder: Path, cache: Path, before: str = "") -> str:
    """A Python that finds no packages but those of a bundle, and keeps that in ``cache``."""
    bare = folder / "python"
    bare.write_text(
        f'#!/bin/sh\nexport XDG_CACHE_HOME={cache}\n{before}\nexec {sys.executable} -S -s "$@"\n'
    )
    bare.chmod(0o755)
    return str(bare)


def _job(python: str, mark: str, *hosts: str) -> SSHJob:
    job = SSHJob(python, monarch_port=0, env={MARK: mark})
    job.add_mesh("trainers", hosts)
    return job


Make = Callable[[str], JobTrait]


@pytest.fixture(params=["ssh", "slurm", pytest.param("kubernetes", marks=pytest.mark.slow)])
def make(
    request: pytest.FixtureRequest,
    mark: str,
    sent: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    """A job of one host with that Python, on what stands in for the real thing."""
    server = KubeServer() if request.param == "kubernetes" else None
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}/slurm:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.chdir(tmp_path)

    def made(python: str) -> JobTrait:
        if request.param == "ssh":
            return _job(python, mark, "gpu1")
        if server is None:
            return SlurmJob({"trainers": 1}, python, monarch_port=free_port(), env={MARK: mark})
        config = KubeConfig.from_config(server.kubeconfig)
        job = KubernetesJob("default", 60.0, config, python_exe=python, env={MARK: mark})
        job.add_mesh("trainers", 1, image_spec=ImageSpec("python"))
        return job

    yield made
    if is_bootstrapped():
        shutdown_context().get()
    if server is not None:
        server.close()


def _imported(job: JobTrait) -> list[str]:
    procs = job.state(cached_path=None).trainers.spawn_procs()
    return procs.spawn("where", Where).where.call().get(timeout=60).values()


@pytest.mark.long
def test_a_python_without_monarch_gets_it_and_keeps_it(
    tmp_path: Path, make: Make, sent: list[str]
) -> None:
    python = _bare(tmp_path, tmp_path / "home")
    for num_sent in (1, 1):
        job = make(python)
        try:
            (place,) = _imported(job)
            assert place.startswith(str(tmp_path / "home/monarch/bundles"))
            assert len(sent) == num_sent
        finally:
            job.kill()
    assert len(os.listdir(tmp_path / "home/monarch/bundles")) == 1


@pytest.mark.long
def test_two_that_start_at_once_share_a_home(tmp_path: Path, mark: str, sent: list[str]) -> None:
    job = _job(_bare(tmp_path, tmp_path / "home"), mark, "gpu1", "gpu2")
    try:
        one, another = _imported(job)
        assert one == another
        assert os.listdir(tmp_path / "home/monarch/bundles") == [Path(one).parts[-3]]
    finally:
        job.kill()


@pytest.mark.long
def test_another_version_there_is_mended_before_anything_starts(tmp_path: Path, make: Make) -> None:
    (tmp_path / "old/monarch").mkdir(parents=True)
    (tmp_path / "old/monarch/__init__.py").write_text("__version__ = '0.0.1'\n")
    python = _bare(tmp_path, tmp_path / "home", f"export PYTHONPATH={tmp_path}/old")
    job = make(python)
    try:
        (place,) = _imported(job)
        assert "/bundles/" in place
    finally:
        job.kill()


@pytest.mark.long
def test_a_home_that_takes_nothing_is_said_in_one_line(tmp_path: Path, make: Make) -> None:
    (tmp_path / "home").write_text("")
    job = make(_bare(tmp_path, tmp_path / "home"))
    with pytest.raises(JobError) as caught:
        job.state(cached_path=None)
    assert "\n" not in str(caught.value)
    assert "Not a directory" in str(caught.value)
    assert "XDG_CACHE_HOME" in str(caught.value)
    job.kill()


@pytest.mark.long
def test_a_host_takes_no_bundle_from_one_who_does_not_know_the_secret(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, secret = free_port(), b"s" * 32
    monkeypatch.setenv("MONARCH_POD_IP", "127.0.0.1")
    url = f"tcp://127.0.0.1:{port}"
    host = subprocess.Popen(
        [_bare(tmp_path, tmp_path / "home"), *bundle_offer.python_arguments("this", port)],
        env={**os.environ, "MONARCH_JOB_SECRET": secret.hex()},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(lambda: _is_open(port), what="it to listen")
        assert bundle_offer.bring_bundles([url], b"w" * 32, None) == []
        assert host.poll() is None
        assert not (tmp_path / "home").exists()
        assert bundle_offer.bring_bundles([url], secret, None) == [url]
        assert host.wait(30) == 0  # Python's `this`, which it was to run, ends.
    finally:
        host.kill()
        host.wait()
        assert host.stdout is not None
        host.stdout.close()


def _is_open(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
def test_an_architecture_without_wheels_is_said_in_one_line(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(JobError, match="cannot be had as wheels for cpython-311 on linux-sparc64"
    ) as caught:  # fmt: skip
        bundle_for("cpython-311 on linux-sparc64", ["linux_sparc64"])
    assert "\n" not in str(caught.value)
    with pytest.raises(JobError, match="no wheels for pypy310 on linux-x86_64"):
        bundle_for("pypy310 on linux-x86_64", ["linux_x86_64"])


@pytest.mark.long
def test_it_is_made_once_for_each_kind_of_python(made: Path) -> None:
    first = bundle_for(python_tag(), platforms())
    assert known_bundles()[python_tag()] == first.digest
    written = first.path.stat().st_mtime_ns
    assert bundle_for(python_tag(), platforms()) == first
    assert first.path.stat().st_mtime_ns == written
    with tarfile.open(first.path) as archive:
        names = set(archive.getnames())
    assert {"monarch/__init__.py", "monarch_sync/__init__.py", "zmq/__init__.py"} <= names


def _archive(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
    return out.getvalue()


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out"])
def test_nothing_is_written_beside_its_folder(tmp_path: Path, name: str) -> None:
    base = tmp_path / "a/b"
    with pytest.raises(OSError, match="leads out"):
        bundle_place._unpacked(str(base), "0" * 32, _archive(name))
    assert not os.listdir(base)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_others_could_have_written_is_not_imported_from(tmp_path: Path) -> None:
    folder = tmp_path / ("0" * 32)
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others could have changed"):
        bundle_place._found(str(tmp_path), "0" * 32)


def test_many_may_unpack_at_once(tmp_path: Path) -> None:
    archive, found = _archive("pkg/one.py"), []

    def unpack() -> None:
        found.append(bundle_place._unpacked(str(tmp_path), "1" * 32, archive))

    threads = [threading.Thread(target=unpack) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {str(tmp_path / ("1" * 32))}
    assert os.listdir(tmp_path) == ["1" * 32]
    assert (tmp_path / ("1" * 32) / "pkg/one.py").read_text() == "one"


def test_a_line_that_came_before_the_bundle_is_kept(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(bundle_place.BUNDLE, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    told: list[object] = []
    data = base64.b64encode(_archive("pkg/one.py")).decode()
    lines = iter(['{"do": "start"}\n', f"bundle {'2' * 32} {data}\n"])
    kept = bundle_place.import_from_bundle({}, told.append, lambda: next(lines, ""))
    assert kept == ['{"do": "start"}\n']
    assert len(told) == 1
    assert os.environ.pop(bundle_place.BUNDLE) == str(tmp_path / "monarch/bundles" / ("2" * 32))


def test_a_bundle_has_a_name(made: Path) -> None:
    assert isinstance(bundle_for(python_tag(), platforms()), Bundle)
