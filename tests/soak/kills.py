"""Kills any process of a run at a random moment, and looks at what comes of it: `make kills`.

    KILLS_RECIPE=ddp,titan,fault_tolerant KILLS_COUNT=40 KILLS_SEED=7 python -m tests.soak.kills

Each try has an allocation of its own, a run, and a watch. Right is: the run ends well by itself,
or, where its client was killed, by the same command or `--resume`; its last checkpoint is that of a
run that nobody disturbed (with fault_tolerant: all groups end equal); and no process, no name in
/dev/shm, no socket and no unfinished file of it is left when the allocation is ended. The seed
decides victims and moments, so that each comes about equally often.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.soak.scene import (
    EVALUATE_EVERY,
    FAILING,
    NUM_STEPS,
    RECIPES,
    Scene,
    new_seed,
    show,
    until,
)

VICTIMS = (
    "rank0", "rank1", "client", "host0", "host1", "zygote", "template", "watch", "author",
    "lighthouse",
)  # fmt: skip
MOMENTS = ("start", "step", "push", "save", "hold", "evaluation", "restart", "end")
_PUSHING = ("push", "hold", "restart")
"""When an author has something to push."""
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
            kind = self.victim.rstrip("01")
            if kind not in ("client", "watch", "host", "zygote"):
                until(lambda: scene.kinds()[kind] or self.is_over(), LIMIT_SECONDS)
                time.sleep(dice.uniform(0.0, 3.0))
            else:
                time.sleep(dice.uniform(0.0, 12.0))
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
        if self.moment == "end":
            last = NUM_STEPS[scene.recipe] - 2
            until(lambda: scene.step() >= last or self.is_over(), LIMIT_SECONDS, pause=0.002)
        if self.moment == "restart" and (ranks := scene.kinds()["rank"]):
            dice.choice(ranks).kill()
            time.sleep(dice.uniform(0.0, 4.0))
        time.sleep(dice.uniform(0.0, 0.3 if self.moment in ("evaluation", "end") else 2.0))
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
        if self.victim == "author":
            self.kill_author()
            return
        kind, place = self.victim.rstrip("01"), self.victim[-1]
        victims = self.scene.kinds()[kind]
        if place in "01":
            # They are started in the order of their hosts.
            victims = sorted(victims, key=lambda one: one.pid)[int(place) :][:1]
        if victims:
            victim = self.dice.choice(victims)
            try:
                victim.kill()
                self.killed = victim.pid
            except psutil.NoSuchProcess:
                pass

    def kill_author(self) -> None:
        """One who pushes by hand what makes the run go on, or changes it."""
        scene = self.scene
        assert scene.watch is not None
        scene.watch.send_signal(signal.SIGINT)
        scene.watch.wait(60.0)
        scene.write()
        author = scene.begin_author()
        time.sleep(self.dice.uniform(0.3, 2.5))
        if author.poll() is None:
            author.kill()
            self.killed = author.pid
        author.wait()

    def mend(self) -> None:
        """What the person does about it."""
        scene = self.scene
        assert scene.run is not None
        assert scene.watch is not None
        is_client = self.killed is not None and self.victim == "client"
        if is_client:
            scene.run.wait()
            time.sleep(self.dice.uniform(0.0, 1.5))
        if self.victim == "author" or (self.killed is not None and self.victim == "watch"):
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
    rows: list[dict[str, Any]] = []
    for number, (victim, moment) in enumerate(plan(recipe, dice)):
        # A victim that was not there at its moment is no kill.
        if sum(row["killed"] is not None for row in rows) == count or number == 2 * count:
            break
        scene = Scene(folder / f"{recipe}-{number}", recipe)
        row = Try(scene, victim, moment, random.Random(f"{seed}/{recipe}/{number}")).go(wanted)
        rows.append({"number": number, **row})
        print(show(rows[-1]), flush=True)
        if not row["wrongs"]:
            scene.discard()
    return rows


def plan(recipe: str, dice: random.Random) -> Iterator[tuple[str, str]]:
    """Pairs of victim and moment without end: what came least is next."""
    pairs = [
        (victim, moment)
        for victim in VICTIMS
        for moment in MOMENTS
        if (victim != "lighthouse" or recipe == "fault_tolerant")
        and (victim != "author" or moment in _PUSHING)
    ]
    dice.shuffle(pairs)
    counts: Counter[object] = Counter()
    while True:
        pair = min(pairs, key=lambda one: (counts[one], counts[one[0]] + counts[one[1]]))
        counts.update([pair, *pair])
        yield pair


def summary(rows: list[dict[str, Any]]) -> str:
    """How often each victim was hit at each moment, by recipe."""
    lines = []
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        hits = Counter(
            (row["victim"], row["moment"])
            for row in rows
            if row["recipe"] == recipe and row["killed"] is not None
        )
        lines.append(f"{recipe:15} " + " ".join(f"{moment:>10}" for moment in MOMENTS))
        for victim in dict.fromkeys(victim for victim, _ in hits):
            numbers = " ".join(f"{hits[victim, moment]:>10}" for moment in MOMENTS)
            lines.append(f"  {victim:13} {numbers}")
    return "\n".join(lines)


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
    print(summary(rows))
    print(f"kills: {num_hit} of {len(rows)} hit, {len(bad)} went wrong")
    if bad:
        print(f"what went wrong is left in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
