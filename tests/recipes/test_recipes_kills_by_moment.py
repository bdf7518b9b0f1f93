"""SIGKILL for each kind of process of a run, at each kind of moment: it ends with the very weights
of a run that nobody disturbed.

What dies with its client is run again by the same command, and goes on in the same folder. The
allocation is one host, so that the death of its agent takes all that runs with it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from monarch.job import ProcessJob, job_load
from monarch.runs.record.folder import RunFolder, runs_in
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from tests.support import wait_for

MONARCH = [sys.executable, "-m", "monarch.cli.main"]
NUM_STEPS = 66
SAVE_EVERY = 15
SECONDS = 240.0

COMMANDS = {
    "ddp": [
        "run", "ddp", "num_channels=4", "num_epochs=6", f"checkpoint_every={SAVE_EVERY}",
        "evaluate_every=0", "device=cpu", "collective_timeout_seconds=60",
    ],
    "fault_tolerant": [
        "run", "fault_tolerant", "hidden_size=16", f"num_steps={NUM_STEPS}",
        f"checkpoint_every={SAVE_EVERY}", "device=cpu", "hang_timeout_seconds=60",
    ],
}  # fmt: skip


class Kill(NamedTuple):
    recipe: str
    victim: str
    moment: str


class Scene:
    """A folder with an allocation, and a run in it."""

    def __init__(self, path: Path, recipe: str) -> None:
        self.path = path
        self.recipe = recipe
        self.said = path / "said.txt"
        (path / "monarch.toml").write_text("[job]\nhosts = { trainers = 1 }\n")
        subprocess.run([*MONARCH, "apply"], cwd=path, check=True, stdout=subprocess.DEVNULL)

    def begin(self) -> subprocess.Popen[bytes]:
        with open(self.said, "ab") as said:
            return subprocess.Popen(
                [*MONARCH, *COMMANDS[self.recipe]], cwd=self.path, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said,
            )  # fmt: skip

    def end(self) -> None:
        subprocess.run([*MONARCH, "kill"], cwd=self.path, check=True, stdout=subprocess.DEVNULL)

    @property
    def run(self) -> RunFolder:
        (run,) = runs_in(self.path / "runs")
        return run

    def has_run(self) -> bool:
        return bool(runs_in(self.path / "runs"))

    def model(self) -> dict[str, torch.Tensor]:
        path = checkpoint_paths(self.run.checkpoint_dir)[-1]
        model: dict[str, torch.Tensor] = load_checkpoint(path).state["model"]
        return model

    def find(self, client: subprocess.Popen[bytes], victim: str) -> psutil.Process | None:
        """The process of that kind, if there is one now."""
        if victim == "client":
            return psutil.Process(client.pid)
        job = job_load(self.path / ".monarch/job_state.json")
        assert isinstance(job, ProcessJob)
        host = psutil.Process(job.hosts[0].pid)
        if victim == "host":
            return host
        templates = host.children()
        if victim == "template":
            return next(iter(templates), None)
        procs = [proc for template in templates for proc in template.children()]
        if victim == "lighthouse":
            known = [e["pid"] for e in self.events("lighthouse")][-1:]
            # Before it has said who it is, it is the only one.
            return next((p for p in procs if not known or p.pid in known), None)
        ranks = [
            p for e in self.events("started") + self.events("respawned") for p in e.get("pids", [])
        ]
        return next((p for p in reversed(procs) if not ranks or p.pid in ranks), None)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [e for e in self.run.events() if e["kind"] in kinds] if self.has_run() else []

    def step(self) -> int:
        rows = self.run.metrics() if self.has_run() else []
        return rows[-1]["step"] if rows else 0


def is_due(scene: Scene, moment: str) -> bool:
    if moment == "start":
        return True  # As soon as there is one.
    if moment == "training":
        return scene.step() >= SAVE_EVERY + 5
    if moment == "save":
        return len(scene.events("saved")) >= 2
    return scene.step() >= NUM_STEPS - 1


def run_with(scene: Scene, kill: Kill) -> None:
    client = scene.begin()
    try:
        wait_for(lambda: client.poll() is not None or is_due(scene, kill.moment), SECONDS)

        def kills() -> bool:
            with contextlib.suppress(psutil.Error, OSError, IndexError):
                victim = scene.find(client, kill.victim)
                if victim is not None:
                    victim.kill()
                    return True
            return client.poll() is not None

        wait_for(kills, SECONDS, what="its victim")
        status = client.wait(SECONDS)
        if kill.victim == "client" and status != 0:
            client = scene.begin()
            status = client.wait(SECONDS)
        assert status == 0, scene.said.read_text()
    finally:
        client.kill()
        client.wait()


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, torch.Tensor]]:
    models: dict[str, dict[str, torch.Tensor]] = {}

    def model_of(recipe: str) -> dict[str, torch.Tensor]:
        if recipe not in models:
            with a_scene(tmp_path_factory.mktemp(recipe), recipe) as scene:
                assert scene.begin().wait(SECONDS) == 0, scene.said.read_text()
                models[recipe] = scene.model()
        return models[recipe]

    return model_of


@contextlib.contextmanager
def a_scene(path: Path, recipe: str) -> Iterator[Scene]:
    scene = Scene(path, recipe)
    try:
        yield scene
    finally:
        scene.end()


def check(path: Path, kill: Kill, wanted: dict[str, torch.Tensor]) -> None:
    with a_scene(path, kill.recipe) as scene:
        run_with(scene, kill)
        assert scene.run.status == "finished", scene.said.read_text()
        assert [row["step"] for row in scene.run.metrics()][-1] == NUM_STEPS
        for name, tensor in scene.model().items():
            assert torch.equal(tensor, wanted[name]), f"{name}\n{scene.said.read_text()}"


VICTIMS = {
    "ddp": ("client", "host", "template", "rank"),
    "fault_tolerant": ("client", "host", "template", "lighthouse", "rank"),
}
MOMENTS = ("start", "training", "save", "end")
# What was found broken once, and one of each kind.
SLOW = {
    Kill("ddp", "host", "training"), Kill("ddp", "template", "start"),
    Kill("fault_tolerant", "lighthouse", "start"), Kill("fault_tolerant", "template", "training"),
    Kill("fault_tolerant", "host", "training"), Kill("fault_tolerant", "lighthouse", "training"),
}  # fmt: skip
# Its group misses steps, which the others make without it: equal groups, another result.
ALL = [
    Kill(recipe, victim, moment)
    for recipe, victims in VICTIMS.items()
    for victim in victims
    for moment in MOMENTS
    if (recipe, victim) != ("fault_tolerant", "rank") or moment == "start"
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(kill, marks=pytest.mark.slow if kill in SLOW else pytest.mark.huge)
        for kill in ALL
    ],
    ids="-".join,
)
def test_a_kill(
    kill: Kill, tmp_path: Path, undisturbed: Callable[[str], dict[str, torch.Tensor]]
) -> None:
    check(tmp_path, kill, undisturbed(kill.recipe))
