"""Goodput of each recipe under a fixed schedule of a kill and an edit, against restarts.

    python benchmarks/goodput.py [RECIPE ...]

Goodput is the time of an undisturbed run over that of the disturbed one, from the first step to
the end of the run. A rank is killed after a third of the steps, and the loss is edited after two
thirds. `live` leaves both to the run and to `monarch sync --watch`; `restart` ends the run each
time, as a person does without them, and begins it again with `--resume`. The allocation stays.
Each is run once; prints a JSON object a recipe.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from tests.soak.scene import RECIPES, Scene, until  # noqa: E402

LENGTHS = {
    "ddp": (660, "num_epochs=60", "checkpoint_every=60"),
    "titan": (150, "training.steps=150", "checkpoint.interval=20"),
    "fault_tolerant": (600, "num_steps=600", "checkpoint_every=60"),
}
_LONGEST_SECONDS = 300.0


def kill_a_rank(scene: Scene) -> None:
    max(scene.kinds()["rank"], key=lambda rank: rank.pid).kill()


def begin_again(scene: Scene) -> None:
    """End the run as Ctrl-C does, which saves a checkpoint, and resume it in a new process."""
    assert scene.run is not None
    scene.run.send_signal(signal.SIGINT)
    scene.run.wait(_LONGEST_SECONDS)
    scene.begin_run(*scene.command, "--resume")


def kill_and_begin_again(scene: Scene) -> None:
    """Kill a rank and the run, as happens without a dev loop, and resume it in a new process."""
    assert scene.run is not None
    kill_a_rank(scene)
    scene.run.kill()
    scene.run.wait(_LONGEST_SECONDS)
    scene.begin_run(*scene.command, "--resume")


def edit_and_begin_again(scene: Scene) -> None:
    scene.write()
    begin_again(scene)


ACTS: dict[str, tuple[Callable[[Scene], None], ...]] = {
    "undisturbed": (),
    "live": (kill_a_rank, Scene.write),
    "restart": (kill_and_begin_again, edit_and_begin_again),
}


def seconds_of(folder: Path, recipe: str, way: str) -> float:
    """Return the seconds from the first step until the run has ended without an error."""
    num_steps, *settings = LENGTHS[recipe]
    scene = Scene(folder, recipe, *settings)
    scene.begin()
    try:
        if not until(lambda: scene.step() > 0, _LONGEST_SECONDS):
            raise SystemExit(f"{recipe} {way}: no first step\n{scene.log.read_text()[-2000:]}")
        began = time.monotonic()
        for number, act in enumerate(ACTS[way], start=1):
            due = num_steps * number // 3
            if not until(lambda due=due: scene.step() >= due, _LONGEST_SECONDS):  # type: ignore[misc]
                raise SystemExit(f"{recipe} {way}: stuck\n{scene.log.read_text()[-2000:]}")
            act(scene)
        assert scene.run is not None
        status = scene.run.wait(_LONGEST_SECONDS)
        if status:
            raise SystemExit(f"{recipe} {way}: {status}\n{scene.log.read_text()[-2000:]}")
        return time.monotonic() - began
    finally:
        scene.end()
        scene.discard()


def main() -> None:
    for recipe in sys.argv[1:] or RECIPES:
        with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
            seconds = {way: seconds_of(Path(folder, way), recipe, way) for way in ACTS}
        row: dict[str, object] = {"recipe": recipe}
        row |= {f"{way}_seconds": round(value, 1) for way, value in seconds.items()}
        for way in ("live", "restart"):
            row[way] = round(seconds["undisturbed"] / seconds[way], 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
