"""``monarch doctor``: what would fail is said, with a way to fix it, and nothing is started."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from monarch.job.doctor import findings
from monarch.job.doctor.examination import Examination
from monarch.job.doctor.findings import Finding, of_all, of_host
from monarch.job.doctor.probe_session import ScriptSession, probe_here
from tests.cli.command_folder import CommandFolder
from tests.job.fakes.kube_server import KubeServer
from tests.job.kinds import FAKES, use_fake_sdks

GIB = 1 << 30


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")


def ssh_project(
    path: Path, *hosts: str, python: str = sys.executable, port: int = 0
) -> CommandFolder:
    folder = CommandFolder(path)
    folder.write(
        "monarch.toml",
        f'[job]\nkind = "ssh"\nhosts = {{ trainers = {list(hosts)} }}\n'
        f'[job.ssh]\npython = "{python}"\nport = {port}\n',
    )
    return folder


def plain(text: str) -> str:
    return " ".join(text.split())


def test_this_machine(tmp_path: Path) -> None:
    said = CommandFolder(tmp_path).monarch("doctor", status=None)
    assert "this machine: Python" in said


@pytest.mark.usefixtures("fakes")
def test_hosts_that_are_as_they_should_be(tmp_path: Path) -> None:
    said = plain(ssh_project(tmp_path, "gpu1", "gpu2").monarch("doctor", status=None))
    assert "gpu1: Python" in said
    assert "all hosts: reach each other: gpu1 at" in said
    told = json.loads(ssh_project(tmp_path, "gpu1").monarch("doctor", "--json", status=None))
    assert set(told["hosts"]) == {"gpu1"}


@pytest.mark.usefixtures("fakes")
def test_one_host_that_is_unknown_is_named_with_what_to_do(tmp_path: Path) -> None:
    began = time.monotonic()
    said = plain(ssh_project(tmp_path, "gpu1", "elsewhere").monarch("doctor", status=1))
    assert "elsewhere: cannot be looked at: ssh: Could not resolve hostname" in said
    assert "see ~/.ssh/config and the spelling" in said
    assert "gpu1: Python" in said
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("fakes")
def test_a_python_that_is_not_there_and_one_that_is_too_old(tmp_path: Path) -> None:
    said = plain(ssh_project(tmp_path, "gpu1", python="/no/python").monarch("doctor", status=1))
    assert "Name the Python there with `python` in monarch.toml" in said
    old = tmp_path / "old-python"
    old.write_text(textwrap.dedent(f"""\
        #!/bin/sh
        exec {sys.executable} -c "import sys; sys.version_info = (3, 6, 9, 'final', 0)
        exec(eval(sys.stdin.readline()))"
    """))  # fmt: skip
    old.chmod(0o755)
    said = plain(ssh_project(tmp_path, "gpu1", python=str(old)).monarch("doctor", status=1))
    assert "Python is 3.6.0, and 3.10 or later is needed" in said


@pytest.mark.usefixtures("fakes")
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        said = plain(ssh_project(tmp_path, "gpu1", port=port).monarch("doctor", status=1))
    assert "the host agent's port cannot be listened at: Address already in use" in said


@pytest.mark.usefixtures("fakes")
def test_hosts_that_are_up_are_looked_at_by_their_agents(tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 2 }\n")
    folder.monarch("apply")
    try:
        said = plain(folder.monarch("doctor", status=None))
        assert "trainers1: Python" in said
        assert "allocation: it is up, and is what is configured" in said
    finally:
        folder.monarch("kill")


def test_no_ssh_and_no_slurm(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    folder = ssh_project(tmp_path, "gpu1")
    said = plain(folder.monarch("doctor", status=1, PATH=str(tmp_path / "bin")))
    assert "there is no `ssh` on the path. Install an OpenSSH client" in said
    folder.write("monarch.toml", '[job]\nkind = "slurm"\nhosts = { trainers = 2 }\n')
    said = plain(folder.monarch("doctor", status=1, PATH=str(tmp_path / "bin")))
    assert "not on the path: sbatch, squeue, scontrol, scancel" in said


def pods_project(path: Path, server: KubeServer, options: str) -> CommandFolder:
    folder = CommandFolder(path)
    (path / "kubeconfig").write_text(json.dumps(server.kubeconfig))
    folder.write(
        "monarch.toml",
        '[job]\nkind = "kubernetes"\nhosts = { trainers = 2 }\n'
        f'[job.kubernetes]\nkubeconfig = "kubeconfig"\n{options}\n',
    )
    return folder


@pytest.mark.long
def test_what_kubernetes_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = KubeServer()
    try:
        folder = pods_project(tmp_path, server, 'image = "python"')
        said = plain(folder.here(monkeypatch, "doctor"))
        assert f"the API server {server.url} answers: v1.31.0" in said
        assert "it would take the job" in said
        pods_project(tmp_path, server, 'image = "i"\nnamespace = "forbidden"')
        said = plain(folder.told(monkeypatch, "doctor", status=1))
        assert "you may not create secrets, delete secrets" in said
        pods_project(tmp_path, server, 'image = "i"\nnamespace = "full"')
        said = plain(folder.told(monkeypatch, "doctor", status=1))
        assert 'it would refuse the job: Kubernetes refuses: pods "trainers-doctor-0"' in said
        pods_project(tmp_path, server, 'image = "i"\nresources = { "nvidia.com/gpu" = "64" }')
        said = plain(folder.here(monkeypatch, "doctor"))
        assert "wants nvidia.com/gpu 64, and the largest of its 1 nodes has 8" in said
        pods_project(tmp_path, server, "")
        said = plain(folder.told(monkeypatch, "doctor", status=1))
        assert "trainers is to have 2 pods, and 0 have the labels" in said
        assert not any(server.stored.values())
    finally:
        server.close()


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CommandFolder(tmp_path)
    folder.write(
        "monarch.toml",
        '[job]\nkind = "kubernetes"\nhosts = { t = 2 }\n[job.kubernetes]\nimage = "i"\n'
        'kubeconfig = "nowhere"\n',
    )
    said = plain(folder.told(monkeypatch, "doctor", status=1))
    assert f"cannot use the kubeconfig {tmp_path}/nowhere" in said


def test_what_ray_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CommandFolder(tmp_path)
    text = '[job]\nkind = "ray"\nhosts = { t = 2 }\n[job.ray]\n'
    folder.write("monarch.toml", text + 'address = "127.0.0.1:9"\n')
    use_fake_sdks(monkeypatch, tmp_path)
    said = plain(folder.told(monkeypatch, "doctor", status=1))
    assert "cannot reach Ray at 127.0.0.1:9: Connection refused" in said
    folder.write("monarch.toml", text + 'address = "here"\nresources = { GPU = 9 }\n')
    said = plain(folder.told(monkeypatch, "doctor", status=1))
    assert "it has 4 nodes, of which 0 have {'GPU': 9" in said
    folder.write("monarch.toml", text + 'address = "here"\n')
    assert "of which 4 have" in plain(folder.here(monkeypatch, "doctor"))


@pytest.mark.parametrize(
    ("kind", "module"), [("ray", "ray"), ("skypilot", "sky"), ("lightning", "lightning_sdk")]
)
def test_a_library_that_is_not_there(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CommandFolder(tmp_path)
    folder.write("monarch.toml", f'[job]\nkind = "{kind}"\nhosts = {{ t = 2 }}\n')
    monkeypatch.setitem(sys.modules, module, None)
    said = plain(folder.told(monkeypatch, "doctor", status=1))
    assert f"pip install 'monarch-loop[{kind}]'" in said


def test_what_slurm_says(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {
        "scontrol": "echo 'Slurmctld(primary) at head is UP'",
        "sinfo": "echo 'gpu*|4|idle|gpu:8'; echo 'cpu|9|idle|(null)'",
        "sbatch": "echo 'allocation failure: Requested node is not available' >&2; exit 1",
        "squeue": "true", "scancel": "true",
    }.items():  # fmt: skip
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    folder = CommandFolder(tmp_path)
    path = f"{tools}:{os.environ['PATH']}"
    folder.write(
        "monarch.toml",
        '[job]\nkind = "slurm"\nhosts = { t = 2 }\n[job.slurm]\npartition = "gpus"\n',
    )
    said = plain(folder.monarch("doctor", status=1, PATH=path))
    assert "there is no partition 'gpus'. There are: gpu, cpu" in said
    folder.write(
        "monarch.toml",
        '[job]\nkind = "slurm"\nhosts = { t = 2 }\n[job.slurm]\ngpus_per_node = 99\n',
    )
    said = plain(folder.monarch("doctor", status=1, PATH=path))
    assert "it would refuse the job: allocation failure: Requested node" in said
    (tools / "sbatch").write_text("#!/bin/sh\necho 'sbatch: Job 7 to start at 12:00' >&2\n")
    assert "it would take the job" in plain(folder.monarch("doctor", PATH=path))
    (tools / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    said = plain(folder.monarch("doctor", "--timeout", "1", status=1, PATH=path))
    assert "it would refuse the job: `sbatch` gave no answer within 1 s" in said


def healthy() -> dict[str, Any]:
    """What a probe tells of a host that has everything."""
    session = probe_here()
    try:
        session.order({"do": "look"})
        told = session.answer(time.monotonic() + 30)
    finally:
        session.close()
    assert "error" not in told
    gpu = {"name": "H100", "driver": "550.1", "memory": "80000", "used": "10"}
    told["gpus"] = {"found": [gpu], "problem": "", "devices": 1}
    told["folders"] = {
        name: {"path": f"/{name}", "free": 100 * GIB, "problem": "", "inodes": 10**6}
        for name in ("home", "tmp")
    }
    told |= {"shm": GIB, "files": 4096, "port": "", "python": [3, 11, 7]}
    told["packages"] = {"monarch-loop": findings.__version__, "torch": "2.6.0"}
    return told


def found(told: dict[str, Any], skew: float = 0.0) -> list[Finding]:
    return list(of_host("gpu1", told, skew, brings_monarch=False))


def test_a_healthy_host_has_no_findings() -> None:
    assert found(healthy()) == []


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"shm": 1 << 20}, "failure", "shared memory"),
        ({"shm": 200 << 20}, "warning", "shared memory"),
        ({"files": 256}, "warning", "only 256 files open"),
        ({"python": [3, 9, 1]}, "failure", "Python is 3.9.1"),
        ({"packages": {}}, "failure", "monarch is not installed"),
        ({"packages": {"monarch-loop": "0.0.1"}}, "failure", "monarch is 0.0.1, here"),
        (
            {"folders": {"home": {"path": "/h", "free": 10, "problem": "", "inodes": -1}}},
            "failure", "only 10 B are free in /h",
        ),
        (
            {"folders": {"home": {"path": "/h", "free": 10**12, "problem": "it is read-only",
                                  "inodes": -1}}},
            "failure", "cannot write to /h: it is read-only",
        ),
        (
            {"gpus": {"found": [], "problem": "Driver/library version mismatch", "devices": 8}},
            "failure", "Driver/library version mismatch",
        ),
        ({"gpus": {"found": [], "problem": "", "devices": 1}}, "warning", "nvidia-smi shows 0"),
        (
            {"gpus": {"found": [{"name": "A", "driver": "1", "memory": "100", "used": "60"}],
                      "problem": "", "devices": 1}},
            "warning", "GPU 0 is in use: 60% of its memory",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_host(change: dict[str, Any], level: str, words: str) -> None:
    (one,) = found(healthy() | change)
    assert one.level == level
    assert words in one.text


def test_a_clock_that_is_wrong() -> None:
    assert found(healthy(), 1.0) == []
    (one,) = found(healthy(), -41.0)
    assert "41.0 s behind" in one.text


def test_hosts_that_differ() -> None:
    other = healthy()
    other["packages"] = other["packages"] | {"torch": "2.5.0"}
    other["gpus"] = {"found": [], "problem": "", "devices": 0}
    texts = {one.text: one.level for one in of_all({"gpu1": healthy(), "gpu2": other})}
    assert texts["torch differs: 2.6.0 on gpu1; 2.5.0 on gpu2"] == "failure"
    assert texts["the number of GPUs differs: 1 on gpu1; 0 on gpu2"] == "warning"


def test_hosts_that_do_not_reach_each_other() -> None:
    told = healthy()

    def fake(name: str, reached: dict[str, Any]) -> ScriptSession:
        addresses = [["eth0", f"10.0.0.{name[-1]}"]]
        answers = {
            "look": told | {"addresses": addresses, "time": time.time()},
            "listen": {"port": 5000 + int(name[-1])},
            "knock": {"reached": reached},
        }  # fmt: skip

        def write(line: bytes) -> None:
            session.take(b"mark " + json.dumps(answers[json.loads(line)["do"]]).encode() + b"\n")

        session = ScriptSession("mark ", write, str, lambda: None)
        return session

    examination = Examination(5.0)
    examination.run(
        {
            "gpu1": lambda: fake("gpu1", {"10.0.0.2:5002": "timed out"}),
            "gpu2": lambda: fake("gpu2", {"10.0.0.1:5001": 0.001}),
        },
        {},
    )
    (failure,) = [one for one in examination.findings if one.level == "failure"]
    assert failure.where == "gpu2"
    assert failure.text == "gpu1 cannot connect to it (at 10.0.0.2)"


def test_a_host_that_says_nothing_is_given_up() -> None:
    def silent() -> ScriptSession:
        return ScriptSession("mark ", lambda line: None, str, lambda: None)

    examination = Examination(0.2)
    examination.run({"gpu1": silent, "gpu2": probe_here}, {})
    assert [one.text for one in examination.findings if one.where == "gpu1"] == [
        "cannot be looked at: no answer within 0 s"
    ]
