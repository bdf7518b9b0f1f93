"""Eight procs on four hosts: whatever goes wrong with one of them, nobody changes alone.

While a push fails, callers go on. Each answer carries the generation that made it: a call never
meets two, and none is ever made by a generation that did not come to everybody.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch_sync import SyncReport
from tests.support import wait_for
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import PLAYER, Stamps, Strike, struck

RELOADING_PLAYER = (
    PLAYER
    + """
    def __reload__(self, change):
        if os.path.exists(os.environ["WORKSPACE_DIR"] + "/hook-trips"):
            raise RuntimeError("this rank cannot take it")
"""
)


class Game:
    """A mesh that is called all the time, and what its answers said."""

    def __init__(self, project: Project, hosts: HostMesh, job: ProcessJob, num_procs: int) -> None:
        self.project = project
        self.job = job
        self.procs = hosts.spawn_procs({"gpus": num_procs}, name="trainers")
        project.write("player.py", RELOADING_PLAYER)
        self.report = project.sync(self.procs)
        assert self.report.ok, str(self.report)
        self.mark = 0
        self.players: Any = self.procs.spawn("player", project.load("player").Player)
        self.answers: list[tuple[int, int]] = []
        self.stamps = Stamps()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._caller = threading.Thread(target=self._call)
        self._caller.start()

    def _call(self) -> None:
        try:
            while not self._is_over.is_set():
                values = list(self.players.stamp.call().get(timeout=60).values())
                assert len(set(values)) == 1, f"ranks differ: {values}"
                self.answers.append(values[0])
        except BaseException as error:
            self._failure = error

    def edit(self, text: str = "") -> None:
        """The next mark, and ``text`` in front of it."""
        self.mark += 1
        path = self.project.root / "player.py"
        path.write_text(text + RELOADING_PLAYER.replace("MARK = 0", f"MARK = {self.mark}"))

    def push(self, **options: Any) -> SyncReport:
        return self.project.sync(self.procs, **options)

    def is_going_on(self) -> None:
        """Calls are answered, from here on."""
        start = len(self.answers)
        wait_for(lambda: len(self.answers) > start + 1 or self._failure, 60, what="an answer")
        if self._failure is not None:
            raise self._failure

    def replicas(self) -> list[str]:
        return [
            (replica_of(self.job, index) / "player.py").read_text()
            for index in range(len(self.job.hosts))
        ]

    def end(self) -> BaseException | None:
        self._is_over.set()
        self._caller.join(90)
        self.stamps.close()
        self.stamps.check()
        return self._failure


@pytest.fixture
def big_job() -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": 4})
    yield made
    made.kill()


@pytest.fixture
def game(project: Project, big_job: ProcessJob) -> Iterator[Game]:
    """Eight procs on four hosts."""
    made = Game(project, big_job.state(cached_path=None).trainers, big_job, 2)
    yield made
    failure = made.end()
    made.procs.stop().get(timeout=30)
    assert failure is None, failure


def limit_files(pid: int, num_bytes: int) -> None:
    """The disk of one process is full: no file of it grows beyond ``num_bytes``."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def fail_to_compile(game: Game) -> Callable[[], object]:
    game.edit("def broken(:\n")
    return lambda: None


def raise_on_one_rank(game: Game) -> Callable[[], object]:
    trap = replica_of(game.job, 2) / "body-trips"
    trap.write_text("")
    game.edit("import os\nif os.path.exists(os.environ.get('WORKSPACE_DIR', '') + '/body-trips'):"
              "\n    raise ValueError('not on this rank')\n")  # fmt: skip
    return trap.unlink


def raise_in_a_hook(game: Game) -> Callable[[], object]:
    trap = replica_of(game.job, 1) / "hook-trips"
    trap.write_text("")
    game.edit()
    return trap.unlink


def fill_the_disk(game: Game) -> Callable[[], object]:
    game.edit()
    game.project.write("large.txt", "".join(f"{n} of many\n" for n in range(20_000)))
    pid = game.job.hosts[3].pid
    limit_files(pid, 64 * 1024)
    return lambda: limit_files(pid, resource.RLIM_INFINITY)


def fill_the_disk_at_the_commit(game: Game) -> Callable[[], object]:
    game.edit()
    pid = game.job.hosts[3].pid
    strike = Strike("Commit", lambda: limit_files(pid, 0), target=game.procs._procs[-1].host_uid)
    watch = struck(strike)
    watch.__enter__()

    def mend() -> None:
        limit_files(pid, resource.RLIM_INFINITY)
        watch.__exit__(None, None, None)

    return mend


FAULTS: list[tuple[Callable[[Game], Callable[[], object]], str]] = [
    (fail_to_compile, "player.py:1"),
    (raise_on_one_rank, "not on this rank"),
    (raise_in_a_hook, "this rank cannot take it"),
    (fill_the_disk, "trainers3"),
    (fill_the_disk_at_the_commit, "trainers3"),
]


@pytest.mark.long
def test_one_who_cannot_keeps_all_from_it(game: Game) -> None:
    for fault, reason in FAULTS:
        game.is_going_on()
        before, files = game.answers[-1], game.replicas()
        game.stamps.by_port.clear()
        mend = fault(game)
        try:
            refused = game.push()
            assert not refused.ok
            assert reason in str(refused), str(refused)
            game.is_going_on()
            assert set(game.answers[-2:]) == {before}, "somebody has changed"
            assert game.stamps.seen() == {before[0]}, "what did not come to all has answered"
        finally:
            mend()
        if fault is not fill_the_disk_at_the_commit:
            assert game.replicas() == files
        game.edit()
        mended = game.push()
        assert mended.ok, str(mended)
        assert mended.generation > before[0]
        wait_for(lambda m=mended: game.answers[-1] == (m.generation, game.mark), what="new code")
        assert game.replicas() == [(game.project.root / "player.py").read_text()] * 4
        game.stamps.check()
