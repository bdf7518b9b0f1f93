"""Kills any process of a run at a random moment, and looks at what comes of it: `make kills`.

    KILLS_RECIPE=ddp,titan,fault_tolerant KILLS_COUNT=40 KILLS_SEED=7 python -m tests.soak.kills

Each try has an allocation of its own, a run, and a watch. Right is: the run ends well by itself,
or, where its client was killed, by the same command or `--resume`; its last checkpoint is that of a
run that nobody disturbed (with fault_tolerant: all groups end equal); and no process and no socket
is left when the allocation is ended. The seed decides victims and moments.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.soak.scene import EVALUATE_EVERY, FAILING, RECIPES, Scene, new_seed, show, until

VICTIMS = ("rank", "client", "host", "zygote", "watch", "lighthouse")
MOMENTS = ("start", "step", "push", "save", "hold", "evaluation")
LIMIT_SECONDS = float(os.environ.get("KILLS_LIMIT", "300"))


class Try:
    """One kill."""

    def __init__(self, scene: Scene, victim: str, moment: str, dice: random.Random) -> None:
        self.scene, self.victim, self.moment, self.dice = scene, victim, moment, dice
        self.wrongs: list[str] = []
        self.killed: int | None = None

    def go(self, undisturbed: str) -> dict[str, Any]:
        """Returns what happened; ``wrongs`` has what should not have."""
        scene, started = self.scene, time.monotonic()
        scene.begin()
        try:
            self.wait_for_the_moment()
            self.kill()
            killed_after = time.monotonic() - started
            self.mend()
            self.see_the_end()
            self.compare(undisturbed)
        finally:
            self.wrongs += scene.end()
        return {
            "recipe": scene.recipe, "victim": self.victim, "moment": self.moment,
            "killed": self.killed, "after": round(killed_after, 1),
            "seconds": round(time.monotonic() - started), "wrongs": self.wrongs,
        }  # fmt: skip

    def wait_for_the_moment(self) -> None:
        scene, dice = self.scene, self.dice
        if self.moment == "start":
            time.sleep(dice.uniform(0.0, 6.0))
            return
        if not until(lambda: scene.events("first_step") or self.is_over(), LIMIT_SECONDS):
            self.wrongs.append("there was no first step")
        if self.moment == "save":
            before = scene.saves()
            until(lambda: scene.saves() > before or self.is_over(), 60.0, pause=0.001)
            return
        if self.moment == "evaluation":
            every = EVALUATE_EVERY[scene.recipe]
            until(lambda: scene.step() % every == every - 1 or self.is_over(), 60.0, pause=0.002)
        time.sleep(dice.uniform(0.0, 0.3 if self.moment == "evaluation" else 2.0))
        if self.moment == "push":
            scene.write()
            time.sleep(dice.uniform(0.0, 0.5))
        if self.moment == "hold":
            scene.write(FAILING)
            if not until(lambda: scene.events("held") or self.is_over(), 60.0):
                self.wrongs.append("it did not hold")
            time.sleep(dice.uniform(0.0, 0.5))

    def is_over(self) -> bool:
        return self.scene.run is None or self.scene.run.poll() is not None

    def kill(self) -> None:
        """What it is to be, if there is one."""
        found = self.scene.kinds()[self.victim]
        if found:
            victim = self.dice.choice(found)
            try:
                victim.kill()
                self.killed = victim.pid
            except psutil.NoSuchProcess:
                pass

    def mend(self) -> None:
        """What the person does about it."""
        scene = self.scene
        assert scene.run is not None
        assert scene.watch is not None
        is_client = self.killed is not None and self.victim == "client"
        if is_client:
            scene.run.wait()
            time.sleep(self.dice.uniform(0.0, 1.5))
        if self.killed is not None and self.victim == "watch":
            scene.watch.wait()
            scene.begin_watch()
        if self.moment == "hold":
            time.sleep(1.5)
            scene.write()
            if is_client:
                time.sleep(1.5)
        if is_client:
            begun = any(run.has_checkpoint for run in scene.runs())
            goes_on = begun and self.dice.random() < 0.5
            scene.begin_run(*(("run", "--resume") if goes_on else ()))

    def see_the_end(self) -> None:
        scene = self.scene
        assert scene.run is not None
        try:
            status: int | None = scene.run.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        if status == 0:
            return
        last = scene.log.read_text(errors="replace")[-1500:]
        if status is None:
            hang = scene.say("hang", seconds=30.0)
            self.wrongs.append(f"it does not end\n{last}\n-- hang: {hang}")
            scene.run.kill()
            scene.run.wait()
            return
        if "to go on: " not in last and "to begin again: " not in last:
            self.wrongs.append(f"it ended with {status}, and does not say how to go on\n{last}")
        scene.begin_run()
        if scene.run.wait(LIMIT_SECONDS) != 0:
            last = scene.log.read_text(errors="replace")[-1500:]
            self.wrongs.append(
                f"it ended with {status}, and the same command does not go on\n{last}"
            )

    def compare(self, undisturbed: str) -> None:
        scene = self.scene
        if scene.recipe != "fault_tolerant":
            if (digest := scene.digest()) != undisturbed:
                self.wrongs.append(f"its weights are {digest}, undisturbed {undisturbed}")
            return
        ends = scene.events("finished")
        equal = [len(set(one["fingerprints"].values())) == 1 for one in ends]
        if not ends or not all(equal):
            self.wrongs.append(f"groups did not end equal: {ends}")
        elif scene.digest().split()[0] != undisturbed.split()[0]:
            self.wrongs.append(f"it ended at {scene.digest()}, undisturbed {undisturbed}")


def undisturbed(folder: Path, recipe: str) -> str:
    """The digest of a run that nobody disturbs."""
    scene = Scene(folder / f"{recipe}-undisturbed", recipe)
    scene.begin()
    try:
        assert scene.run is not None
        status = scene.run.wait(LIMIT_SECONDS * 2)
        assert status == 0, scene.log.read_text(errors="replace")[-2000:]
        return scene.digest()
    finally:
        wrongs = scene.end()
        scene.discard()
        assert not wrongs, wrongs


def walk(folder: Path, recipe: str, count: int, seed: str) -> list[dict[str, Any]]:
    """So many kills, each told as it ends."""
    dice = random.Random(f"{seed}/{recipe}")
    wanted = undisturbed(folder, recipe)
    victims = [victim for victim in VICTIMS if victim != "lighthouse" or recipe == "fault_tolerant"]
    combinations = list(itertools.product(victims, MOMENTS))
    dice.shuffle(combinations)
    rows = []
    for number, (victim, moment) in zip(range(count), itertools.cycle(combinations)):
        scene = Scene(folder / f"{recipe}-{number}", recipe)
        row = Try(scene, victim, moment, random.Random(f"{seed}/{recipe}/{number}")).go(wanted)
        rows.append({"number": number, **row})
        print(show(rows[-1]), flush=True)
        if not row["wrongs"]:
            scene.discard()
    return rows


def main() -> int:
    # A shell that starts this beside itself has it ignored, also by what is started here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seed = os.environ.get("KILLS_SEED") or new_seed()
    count = int(os.environ.get("KILLS_COUNT", "40"))
    recipes = os.environ.get("KILLS_RECIPE", ",".join(RECIPES)).split(",")
    print(f"kills: {count} of each of {', '.join(recipes)} (KILLS_SEED={seed} repeats them)")
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/tmp"))
    rows = [row for recipe in recipes for row in walk(folder, recipe, count, seed)]
    bad = [row for row in rows if row["wrongs"]]
    num_hit = sum(row["killed"] is not None for row in rows)
    print(f"kills: {num_hit} of {len(rows)} hit, {len(bad)} went wrong")
    if bad:
        print(f"what went wrong is left in {folder}")
    else:
        folder.rmdir()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
