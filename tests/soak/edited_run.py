"""Edits, failing edits, rollbacks and kills for a training with a watch beside it, as long as one
likes: `SOAK_OF=run make soak`.

In between it rests until the run trains again. Then descriptors, threads and segments of client,
hosts and watch are counted. None may have more at the end than after the first minute, and the last
checkpoint is that of a run that nobody disturbed.
"""

from __future__ import annotations

import collections
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.soak.scene import FAILING, Scene, until

SETTINGS = (
    "num_epochs=1000000",
    "global_batch_size=64",
    "checkpoint_every=100",
    "max_restarts=1000",
)
ACTS = {
    "edit": 30, "syntax": 8, "fail": 8, "rollback": 3, "rank": 4, "zygote": 2, "host": 2,
    "client": 1.5, "watch": 3, "stall": 4,
}  # fmt: skip
FAILURES = (FAILING, "    raise SystemExit(3)\n", "    logits = logits[:, :3].t()\n")
WARM_SECONDS = 60.0
REST_EVERY_SECONDS = 30.0
TOLERATED = 2
"""A connection to a command that has just left is not closed at once."""


class Use(NamedTuple):
    """What one process uses."""

    descriptors: int
    threads: int
    segments: int


class Soak:
    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self.scene, self.dice = scene, dice
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrongs: list[str] = []
        self.acts: dict[str, Callable[[], object]] = {
            "edit": scene.write,
            "syntax": self.syntax,
            "fail": self.fail,
            "rollback": self.roll_back,
            "watch": self.kill_watch,
            "client": self.kill_client,
            "stall": self.stall,
            **{kind: lambda kind=kind: self.kill(kind) for kind in ("rank", "zygote", "host")},
        }

    def act(self) -> None:
        """Something that happens to a run."""
        act = self.dice.choices(list(ACTS), list(ACTS.values()))[0]
        self.counts[act] += 1
        try:
            self.acts[act]()
        except (psutil.Error, RuntimeError, subprocess.TimeoutExpired) as error:
            self.counts[f"{act} in vain"] += 1
            print(f"  {act}: {str(error)[:300]}", flush=True)

    def syntax(self) -> None:
        (self.scene.project / "task.py").write_text("def compute_loss(:\n")
        time.sleep(self.dice.uniform(0.2, 2.0))
        self.scene.write()

    def fail(self) -> None:
        self.scene.write(self.dice.choice(FAILURES))
        time.sleep(self.dice.uniform(0.3, 3.0))
        self.scene.write()

    def roll_back(self) -> None:
        self.scene.say("sync", "rollback", seconds=60.0)
        time.sleep(self.dice.uniform(0.0, 0.5))
        self.scene.write()

    def kill(self, kind: str) -> None:
        if found := self.scene.kinds()[kind]:
            self.dice.choice(found).kill()

    def kill_watch(self) -> None:
        assert self.scene.watch is not None
        self.scene.watch.kill()
        self.scene.watch.wait()
        self.scene.begin_watch()

    def kill_client(self) -> None:
        assert self.scene.run is not None
        self.scene.run.kill()
        self.scene.run.wait()
        self.scene.begin_run()

    def stall(self) -> None:
        found = [one for some in self.scene.kinds().values() for one in some]
        if found:
            one = self.dice.choice(found)
            one.suspend()
            time.sleep(self.dice.uniform(0.2, 4.0))
            one.resume()

    def rest(self) -> dict[str, Use]:
        """The use of each kind of process, the most of one, once it trains again."""
        scene = self.scene
        scene.write()
        assert scene.run is not None
        if scene.run.poll() is not None:
            last = scene.log.read_text(errors="replace")[-1000:]
            self.wrongs.append(f"the run has ended with {scene.run.returncode}: {last}")
            scene.begin_run()
        step = scene.step()
        if not until(lambda: scene.step() > step + 5, 120.0):
            hang = scene.say("hang", seconds=30.0)
            self.wrongs.append(f"it does not train: {scene.log.read_text()[-1000:]}\n{hang}")
        time.sleep(2.0)
        kinds = self.scene.kinds()
        found = {}
        for kind in ("client", "host", "watch"):
            uses = [use for one in kinds[kind] if (use := use_of(one)) is not None]
            if uses:
                found[kind] = Use(*map(max, *uses)) if len(uses) > 1 else uses[0]
        return found


def use_of(one: psutil.Process) -> Use | None:
    try:
        maps = Path(f"/proc/{one.pid}/maps").read_text().splitlines()
        segments = {line.partition("/dev/shm/")[2] for line in maps if "/dev/shm/" in line}
        return Use(one.num_fds(), one.num_threads(), len(segments))
    except (psutil.Error, OSError):
        return None


def growth(measures: list[tuple[float, dict[str, Use]]]) -> list[str]:
    """What there is more of at the end than after the first minute."""
    warm = [uses for at, uses in measures if at >= WARM_SECONDS] or [uses for _, uses in measures]
    if len(warm) < 2:
        return ["too short to compare"]
    found = []
    for kind, last in warm[-1].items():
        first = warm[0].get(kind, last)
        for name, before, now in zip(Use._fields, first, last, strict=True):
            if now > before + TOLERATED:
                found.append(f"the {name} of the {kind} have grown from {before} to {now}")
    return found


def soak_run(seconds: float, seed: str) -> int:
    """Whether all went well, as a status."""
    # A shell that starts this beside itself has it ignored, also by what is started here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"soak of a run: {seconds:.0f} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    scene = Scene(folder / "scene", "ddp", *SETTINGS)
    soak = Soak(scene, random.Random(seed))
    measures: list[tuple[float, dict[str, Use]]] = []
    scene.begin()
    try:
        until(lambda: scene.events("first_step"), 240.0)
        started = rested = time.monotonic()
        while time.monotonic() - started < seconds:
            soak.act()
            time.sleep(soak.dice.uniform(0.5, 4.0))
            if time.monotonic() - rested > REST_EVERY_SECONDS:
                measures.append((time.monotonic() - started, soak.rest()))
                rested = time.monotonic()
                print(
                    f"{measures[-1][0]:5.0f} s, step {scene.step()}: {measures[-1][1]}", flush=True
                )
        measures.append((time.monotonic() - started, soak.rest()))
        assert scene.run is not None
        scene.run.send_signal(signal.SIGINT)
        scene.run.wait(60.0)
        last = scene.digest()
    finally:
        soak.wrongs += scene.end()
    soak.wrongs += growth(measures)
    if (wanted := undisturbed(folder / "undisturbed", int(last.split()[0][5:]))) != last:
        soak.wrongs.append(f"its weights are {last}, those of an undisturbed run {wanted}")
    print(f"{sum(soak.counts.values())} acts: {dict(soak.counts)}")
    for wrong in soak.wrongs:
        print(f"WRONG: {wrong}")
    if not soak.wrongs:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"soak: {len(soak.wrongs)} wrongs" if soak.wrongs else "soak: all well")
    return 1 if soak.wrongs else 0


def undisturbed(folder: Path, step: int) -> str:
    """The digest of the same training after that step, with nothing in its way."""
    scene = Scene(folder, "ddp", *SETTINGS[:2], f"checkpoint_every={step}", "evaluate_every=0")
    scene.write()
    task = scene.project / "task.py"
    task.write_text(task.read_text().replace("time.sleep(0.02)", "time.sleep(0)"))
    scene.begin()
    try:
        until(lambda: scene.events("saved"), 3600.0)
        assert scene.run is not None
        scene.run.kill()
        scene.run.wait()
        return scene.digest()
    finally:
        scene.end()
