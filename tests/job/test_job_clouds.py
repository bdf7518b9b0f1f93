"""Jobs of Lightning and SkyPilot: what their clouds say, and what their libraries are asked.

Stand-ins for the libraries (`fakes/sdks`) have the signatures of the real ones; machines are
processes here. `make system` asks the real libraries whether that is so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import JobTrait, LightningJob, SkyPilotJob, job_load
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.job.fakes import machines
from tests.job.kinds import SDKS, use_fake_sdks
from tests.support import wait_for


class Cloud:
    """``noted`` is what it knows of its one job or cluster, and the name of that."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def noted(self) -> tuple[str, dict[str, object]]:
        [path] = machines.folder().glob("*.json")
        return path.stem, json.loads(path.read_text())

    def refuse(self, words: str) -> None:
        (machines.folder() / "refusal").write_text(words)

    def num_up(self) -> int:
        found = [json.loads(path.read_text()) for path in machines.folder().glob("*.json")]
        return sum(machines.is_up(one) for noted in found for one in noted["machines"])


@pytest.fixture(params=["lightning", "skypilot"])
def cloud(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Cloud]:
    use_fake_sdks(monkeypatch, tmp_path)
    yield Cloud(request.param)
    for path in machines.folder().glob("*.json"):
        machines.stop(json.loads(path.read_text())["machines"])
    if is_bootstrapped():
        shutdown_context().get()


def make(cloud: Cloud) -> JobTrait:
    port = free_port()
    if cloud.name == "lightning":
        return LightningJob(2, "CPU", mesh="trainers", python_exe=sys.executable, monarch_port=port)
    return SkyPilotJob({"trainers": 2}, {"cpus": 4}, monarch_port=port, python_exe=sys.executable)


@pytest.mark.long_but(1)
def test_a_job_serves_only_what_is_the_same(cloud: Cloud, tmp_path: Path) -> None:
    job = make(cloud)
    path = tmp_path / "state.json"
    try:
        job.state(str(path))
        again = job_load(path)
        assert again.is_running()
        assert not again.can_run(make(cloud))  # It has another port.
    finally:
        job.kill()
    assert not cloud.num_up()


def test_what_the_cloud_refuses_is_told_in_its_words(cloud: Cloud) -> None:
    cloud.refuse("no quota for 2 machines")
    with pytest.raises(JobError, match="no quota for 2 machines"):
        make(cloud).state(cached_path=None)
    assert not cloud.num_up()


@pytest.mark.long_but(1)
def test_a_cluster_that_is_gone_is_known_to_be(cloud: Cloud, tmp_path: Path) -> None:
    job = make(cloud)
    job.state(str(tmp_path / "state.json"))
    name, noted = cloud.noted
    machines.stop(noted["machines"])  # type: ignore[arg-type]  # as noted above
    machines.note(name, None if cloud.name == "skypilot" else noted | {"status": "Failed"})
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


@pytest.mark.long
@pytest.mark.parametrize("cloud", ["lightning"], indirect=True)
def test_the_example_of_lightning(
    cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
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
    assert not cloud.num_up()


# Calls go through the real functions' signatures, to the stand-ins behind them.
_WITH_THE_REAL = """
import importlib, inspect, sys
from unittest.mock import create_autospec
name, fakes = sys.argv[1:]
real = importlib.import_module(name)
del sys.modules[name]
sys.path.insert(0, fakes)
fake = importlib.import_module(name)
assert fake.__file__ != real.__file__

def bound(ours, theirs, where):
    wrong = set(inspect.signature(ours).parameters) - set(inspect.signature(theirs).parameters)
    assert not wrong, f"{where} has no {wrong}"
    return create_autospec(theirs, side_effect=ours)

from monarch.job import LightningJob, SkyPilotJob
from tests.actors import Echo
from monarch.tools.network import free_port
if name == "sky":
    for call in ("launch", "status", "down", "get"):
        setattr(fake, call, bound(getattr(fake, call), getattr(real, call), call))
    bound(fake.Task.__init__, real.Task.__init__, "Task")
    task = real.Task  # The real one is made, too: it looks at what it is given.
    plain = fake.Task
    def make_task(*args, **kwargs):
        task(*args, **kwargs)
        return plain(*args, **kwargs)
    fake.Task = make_task
    fake.Resources = real.Resources
    assert real.StatusRefreshMode.AUTO
    assert real.Task.set_resources
    from sky.backends import CloudVmRayResourceHandle
    job = SkyPilotJob(
        {"trainers": 2}, real.Resources(cpus="4"), monarch_port=free_port(),
        python_exe=sys.executable, idle_minutes_to_autostop=10,
    )
else:
    run = bound(fake.MMT.run, real.MMT.run, "MMT.run")
    fake.MMT.run = run
    bound(fake.MMT.__init__, real.MMT.__init__, "MMT")
    for name in ("machines", "status", "stop", "logs"):
        assert hasattr(real.MMT, name), name
    from lightning_sdk.status import Status
    known = {one.value for one in Status}
    from monarch.job.kinds.lightning import _OVER
    assert _OVER <= known, known
    assert real.Machine.CPU
    fake.Machine = real.Machine
    job = LightningJob(
        2, real.Machine.CPU, mesh="trainers", monarch_port=free_port(), python_exe=sys.executable,
        options={"interruptible": True, "max_runtime": 3600},
    )
try:
    echo = job.state(cached_path=None).trainers.spawn_procs().spawn("echo", Echo)
    print("answers", *echo.echo.call(3).get(timeout=60).values())
finally:
    job.kill()
"""


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", ["lightning_sdk", "sky"])
def test_the_real_library_takes_what_it_is_asked(module: str, tmp_path: Path) -> None:
    installed = Path(sys.prefix) / "sdks" / module.partition("_")[0]
    if not installed.is_dir():
        pytest.skip(f"no {module} in {installed}: `tools/system.sh` brings it there, by pip")
    (tmp_path / "cloud").mkdir()
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _WITH_THE_REAL, module, str(SDKS)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ, "PYTHONPATH": str(installed), "FAKE_CLOUD": str(tmp_path / "cloud"),
            "HOME": str(tmp_path / "home"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers 3 3" in done.stdout
