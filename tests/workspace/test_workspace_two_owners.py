"""Two programs whose hosts one author pushes to together, and who dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from tests.support import Program, wait_for
from tests.workspace.author import script
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import PLAYER

RELOADING_PLAYER = (
    PLAYER
    + """
    def __reload__(self, change):
        if os.path.exists(os.environ["WORKSPACE_DIR"] + "/hook-trips"):
            raise RuntimeError("this rank cannot take it")
"""
)

OTHER_OWNER = """
import sys, time
sys.path.insert(0, {folder!r})
from monarch.actor import attach_to_workers
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from player import Player

procs = attach_to_workers(workers={urls!r}).spawn_procs(name="others")
players = procs.spawn("player", Player)
players.stamp.call().get()
node = process.current().node
print("owner", node.uid, flush=True)
told = None
while True:
    is_idle = session_of(process.current()).reload.is_idle
    state = sorted(set(players.stamp.call().get(timeout=60).values())), is_idle
    if state != told:
        print("state", *state, flush=True)
    told = state
    time.sleep(0.05)
"""


@pytest.fixture
def others() -> Iterator[ProcessJob]:
    """A host of another program."""
    made = ProcessJob({"others": 1})
    made.apply()
    yield made
    made.kill()


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": 1})
    yield made
    made.kill()


@pytest.mark.parametrize(
    ("refuses", "dies_for", "is_after"),
    [
        ("nobody", "us", False),
        ("nobody", "them", True),
        ("we", "them", True),
        ("they", "us", True),
    ],
)
def test_both_come_to_one_end(
    project: Project,
    job: ProcessJob,
    others: ProcessJob,
    hosts: HostMesh,
    program: Callable[..., Program],
    refuses: str,
    dies_for: str,
    is_after: bool,
) -> None:
    """The author dies before, or after, one of the two has changed its code. What one of them
    refuses, neither runs."""
    project.write("player.py", RELOADING_PLAYER)
    players: Any = hosts.spawn_procs(name="trainers").spawn("player", project.load("player").Player)
    players.stamp.call().get(timeout=60)
    other = program(OTHER_OWNER.format(folder=str(project.root), urls=others.urls()))
    their_uid = other.line("owner ").strip()
    order = {"folder": str(project.root), "urls": [*job.urls(), *others.urls()]}
    first = program(script({**order, "marks": [1]}))
    assert first.wait(60) == 0, first.story()
    assert first.lines == ["pushed 1"], first.story()
    ours = session_of(process.current()).reload
    both = [replica_of(job), replica_of(others)]
    if refuses != "nobody":
        (both[refuses == "they"] / "hook-trips").write_text("")

    uid = process.current().node.uid if dies_for == "us" else their_uid
    strike = {"step": "patch", "is_after": is_after, "target": uid}
    author = program(script({**order, "marks": [2], **strike}))
    assert author.wait(60) == -9, author.story()

    wait_for(lambda: ours.is_idle, 60, what="an end of it here")
    wanted = 2 if refuses == "nobody" else 1
    values = set(players.stamp.call().get(timeout=60).values())
    assert {mark for _, mark in values} == {wanted}
    wait_for(
        lambda: other.lines[-1] == f"state {sorted(values)} True", 60,
        what=f"their end at {values}: {other.lines[-3:]}",
    )  # fmt: skip
    files = {(folder / "player.py").read_text() for folder in both}
    assert [f"MARK = {wanted}\n" in text for text in files] == [True]
