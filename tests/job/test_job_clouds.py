"""Jobs of Lightning and SkyPilot, as far as that is seen without an account.

Their libraries stand in as modules that have the signatures of the real ones, which were recorded
from lightning-sdk 2026.10 and SkyPilot 0.14 (`MMT.run`, `sky.launch`, `sky.Task`); machines are
processes here. Where the real lightning-sdk is installed, its signature is looked at, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import JobTrait, LightningJob, SkyPilotJob, job_load
from monarch.runtime.process import is_bootstrapped
from tests.actors import Echo
from tests.job.sshd import free_port
from tests.support import wait_for

_ADDRESSES = ("127.0.0.71", "127.0.0.72")


class _Machines:
    """Processes that a cloud's job runs its command in."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = b""

    def start(self, command: str, env: dict[str, str], folder: Path) -> None:
        for rank, address in enumerate(_ADDRESSES):
            with open(folder / f"machine{rank}.log", "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        ["sh", "-c", f"exec env {command}"],
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                        env={
                            **os.environ,
                            **env,
                            "MONARCH_POD_NAME": f"m{rank}",
                            "SKYPILOT_NODE_IPS": "\n".join(_ADDRESSES),
                            "SKYPILOT_NODE_RANK": str(rank),
                            # As a machine has that knows its address by its name.
                            "MONARCH_POD_IP": address,
                        },
                    )
                )

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)
        self.processes.clear()


class _Lightning(types.ModuleType):
    """``lightning_sdk``, of one job."""

    def __init__(self, folder: Path) -> None:
        super().__init__("lightning_sdk")
        machines, jobs = _Machines(), {}
        self.machines, self.jobs, self.refusal = machines, jobs, ""
        module = self

        class MMT:
            def __init__(
                self, name: str, teamspace: Any = None, org: Any = None, user: Any = None
            ) -> None:
                if name not in jobs:
                    raise ValueError(f"there is no job {name}")
                self.name = name

            @staticmethod
            def run(
                name: str, num_machines: int, machine: Any, cloud: Any = None,
                command: str | None = None, studio: Any = None, image: str | None = None,
                teamspace: Any = None, org: Any = None, user: Any = None,
                env: dict[str, str] | None = None, interruptible: bool = False,
                max_runtime: int | None = None, keep_minutes: int | None = None,
            ) -> Any:  # fmt: skip
                if module.refusal:
                    raise RuntimeError(module.refusal)
                jobs[name] = {"machine": machine, "studio": studio, "status": "Running"}
                machines.start(command or "", dict(env or {}), folder)
                return MMT(name)

            @property
            def status(self) -> Any:
                return types.SimpleNamespace(value=jobs[self.name]["status"])

            @property
            def machines(self) -> tuple[Any, ...]:
                return tuple(
                    types.SimpleNamespace(
                        private_ip_address=address,
                        status="Running" if process.poll() is None else "Failed",
                    )
                    for address, process in zip(_ADDRESSES, machines.processes, strict=False)
                )

            @property
            def logs(self) -> str:
                return (folder / "machine0.log").read_text()

            def stop(self) -> None:
                machines.stop()
                jobs[self.name]["status"] = "Stopped"

        self.MMT = MMT
        self.Machine = types.SimpleNamespace(CPU="cpu-4")
        self.Studio = lambda: "the studio"


class _Sky(types.ModuleType):
    """``sky``, of one cluster."""

    def __init__(self, folder: Path) -> None:
        super().__init__("sky")
        self.machines, self.clusters = _Machines(), {}
        self.refusal = ""
        self.Resources = types.SimpleNamespace(from_yaml_config=lambda config: config)
        self.StatusRefreshMode = types.SimpleNamespace(AUTO="auto")
        self.folder = folder

        class Task:
            def __init__(
                self, name: str | None = None, *, setup: Any = None, run: Any = None,
                envs: Any = None, secrets: Any = None, workdir: Any = None,
                num_nodes: int | None = None,
            ) -> None:  # fmt: skip
                self.run, self.env = run, {**envs, **secrets}

            def set_resources(self, resources: Any) -> None:
                self.resources = resources

        self.Task = Task

    def launch(
        self, task: Any, cluster_name: str | None = None, retry_until_up: bool = False,
        idle_minutes_to_autostop: int | None = None, dryrun: bool = False, down: bool = False,
    ) -> Callable[[], Any]:  # fmt: skip
        def work() -> Any:
            if self.refusal:
                raise RuntimeError(self.refusal)
            pairs = [(address, "203.0.113.1") for address in _ADDRESSES]
            handle = types.SimpleNamespace(stable_internal_external_ips=pairs)
            self.clusters[cluster_name] = {"status": "UP", "handle": handle}
            self.machines.start(task.run, task.env, self.folder)
            return 1, handle

        return work

    def status(self, names: list[str], refresh: Any = None) -> Callable[[], Any]:
        return lambda: [self.clusters[name] for name in names if name in self.clusters]

    def down(self, name: str) -> Callable[[], Any]:
        def work() -> None:
            self.machines.stop()
            del self.clusters[name]

        return work

    def get(self, request: Callable[[], Any]) -> Any:
        return request()


@pytest.fixture(params=["lightning", "skypilot"])
def cloud(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    fake = _Lightning(tmp_path) if request.param == "lightning" else _Sky(tmp_path)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    yield fake
    fake.machines.stop()
    if is_bootstrapped():
        shutdown_context().get()


def make(cloud: Any, **options: Any) -> JobTrait:
    port = free_port()
    if isinstance(cloud, _Lightning):
        return LightningJob(
            2, "CPU", mesh="trainers", python_exe=sys.executable, monarch_port=port, **options
        )
    return SkyPilotJob(
        {"trainers": 2}, {"cpus": 4}, monarch_port=port, python_exe=sys.executable, **options
    )


def test_machines_come_up_are_found_again_and_end(cloud: Any, tmp_path: Path) -> None:
    job = make(cloud)
    path = tmp_path / "state.json"
    try:
        hosts = job.state(str(path)).trainers
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
        again = job_load(path)
        assert again.is_running()
        assert not again.can_run(make(cloud))  # It has another port.
        assert again.num_running() == 2
    finally:
        job.kill()
    assert not cloud.machines.processes
    assert not path.exists()


def test_what_the_cloud_refuses_is_told_in_its_words(cloud: Any) -> None:
    cloud.refusal = "no quota for 2 machines"
    with pytest.raises(JobError, match="no quota for 2 machines"):
        make(cloud).state(cached_path=None)
    assert not cloud.machines.processes


def test_a_cluster_that_is_gone_is_known_to_be(cloud: Any, tmp_path: Path) -> None:
    job = make(cloud)
    job.state(str(tmp_path / "state.json"))
    cloud.machines.stop()
    if isinstance(cloud, _Sky):
        cloud.clusters.clear()
    else:
        next(iter(cloud.jobs.values()))["status"] = "Failed"
    wait_for(lambda: not job_load(tmp_path / "state.json").is_running(), what="its end")
    job.kill()


@pytest.mark.parametrize(
    ("module", "job"),
    [
        ("lightning_sdk", lambda: LightningJob(1, "CPU")),
        ("sky", lambda: SkyPilotJob({"a": 1})),
    ],
)
def test_without_the_library_the_extra_is_named(
    module: str, job: Callable[[], JobTrait], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JobError, match=r"pip install 'monarch-loop\["):
        job().state(cached_path=None)


@pytest.mark.parametrize("cloud", ["lightning"], indirect=True)
def test_the_example_of_lightning(
    cloud: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setitem(LightningJob.__init__.__kwdefaults__, "monarch_port", free_port())
    example = Path(__file__).parents[2] / "examples/lightning/multi_node.py"
    # By its name: what its procs import has to be found there.
    monkeypatch.syspath_prepend(str(example.parent))
    __import__("multi_node").main(2, "CPU")
    told = capsys.readouterr().out
    assert "Identity: 0, message='hey there, from script!!'" in told
    assert "Identity: 1, " in told
    assert not cloud.machines.processes


def test_the_recorded_signature_is_that_of_the_real_library() -> None:
    import inspect

    real = pytest.importorskip("lightning_sdk")
    ours = inspect.signature(_Lightning(Path()).MMT.run).parameters
    assert set(ours) <= set(inspect.signature(real.MMT.run).parameters)
