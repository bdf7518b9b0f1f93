"""Two programs whose hosts one author pushes to together."""

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
import os, sys, time
sys.path.insert(0, {folder!r})
from monarch.actor import attach_to_workers
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
procs = attach_to_workers(workers={urls!r}).spawn_procs(name="others")
print("owner", process.current().node.uid, flush=True)
while not os.path.exists({replica!r} + "/player.py"):
    time.sleep(0.05)
from player import Player
players = procs.spawn("player", Player)
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


class Two:
    """Our program and another one, each with a host, and an author that pushes to both."""

    def __init__(
        self,
        project: Project,
        jobs: tuple[ProcessJob, ProcessJob],
        hosts: HostMesh,
        program: Callable[..., Program],
    ) -> None:
        project.write("player.py", RELOADING_PLAYER)
        mesh = hosts.spawn_procs(name="trainers")
        mesh.initialized.get(timeout=60)
        self.replicas = [replica_of(job) for job in jobs]
        where = {"folder": str(project.root), "replica": str(self.replicas[1])}
        self._other = program(OTHER_OWNER.format(urls=jobs[1].urls(), **where))
        self.uids = [process.current().node.uid, self._other.line("owner ").strip()]
        self._program = program
        self._order = {"folder": str(project.root), "urls": [u for job in jobs for u in job.urls()]}
        first = self.push(1)
        assert first.lines == ["pushed 1"], first.story()
        # Procs run the copies on their hosts.
        self.players: Any = mesh.spawn("player", project.load("player").Player)
        self.come_to(1, 1)

    def push(self, mark: int, **how: Any) -> Program:
        author = self._program(script({**self._order, "marks": [mark], **how}))
        author.wait(60)
        return author

    def come_to(self, ours: int, theirs: int) -> None:
        """Both run these marks, with their files, and can be pushed to."""
        reload = session_of(process.current()).reload
        wait_for(lambda: reload.is_idle, 60, what="an end of it here")
        assert {mark for _, mark in self.players.stamp.call().get(timeout=60).values()} == {ours}
        wait_for(
            lambda: self._other.lines[-1].endswith(f", {theirs})] True"), 60,
            what=f"their end at {theirs}: {self._other.lines[-3:]}",
        )  # fmt: skip
        for mark, folder in zip((ours, theirs), self.replicas, strict=True):
            assert f"MARK = {mark}\n" in (folder / "player.py").read_text()


@pytest.fixture
def two(
    project: Project,
    job: ProcessJob,
    others: ProcessJob,
    hosts: HostMesh,
    program: Callable[..., Program],
) -> Two:
    return Two(project, (job, others), hosts, program)


@pytest.mark.parametrize("refuses", ["we", "they"])
@pytest.mark.long
def test_what_one_refuses_at_last_neither_runs_in_the_end(two: Two, refuses: str) -> None:
    """Also where the other one had switched by then."""
    trip = two.replicas[refuses == "they"] / "hook-trips"
    trip.write_text("")
    author = two.push(2)
    assert "this rank cannot take it" in author.story()
    two.come_to(1, 1)
    trip.unlink()
    again = two.push(3)
    assert again.lines[0].startswith("pushed "), again.story()
    two.come_to(3, 3)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("is_after", [False, True])
def test_where_the_author_dies_between_them_the_next_push_brings_them_together(
    two: Two, is_after: bool
) -> None:
    """It has the first switch, or has had, when it dies: the second has not been told to."""
    first = min(two.uids)
    author = two.push(2, step="switch", target=first, is_after=is_after)
    assert author.wait(60) == -9, author.story()
    ends = [2 if is_after and uid == first else 1 for uid in two.uids]
    two.come_to(*ends)
    again = two.push(3)
    assert again.lines[0].startswith("pushed "), again.story()
    two.come_to(3, 3)
