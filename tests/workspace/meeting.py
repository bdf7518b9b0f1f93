"""Meshes whose actors wait for one another within their steps, and whoever drives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support import wait_for
from tests.workspace.steps import PLAYER

__all__ = ["WALKERS", "Drive", "driven"]

WALKERS = (
    PLAYER
    + '''
import time

from monarch.actor import Channel, this_host


class Walker(Actor):
    """No step of it ends before as many have begun of each other walker in the folder.

    Unless there is a file "over".
    """

    def __init__(self, folder, name, names):
        names = [f"{folder}/{one}" for one in names]
        self.files = [os.open(one, os.O_RDWR | os.O_CREAT) for one in names]
        self.over = f"{folder}/over"
        self.mine = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT)
        self.count = 0

    @endpoint
    def step(self):
        began = context().generation, MARK
        self.count += 1
        os.pwrite(self.mine, self.count.to_bytes(8, "big"), 0)
        deadline = time.monotonic() + 60
        for file in self.files:
            while int.from_bytes(os.pread(file, 8, 0), "big") < self.count:
                if os.path.exists(self.over):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody else has begun step {self.count}")
                time.sleep(0.001)
        return began, (context().generation, MARK)


class Leader(Actor):
    """Owns a mesh of walkers, and steps it more than once in each step of its own."""

    def __init__(self, folder, name, names):
        self.walkers = this_host().spawn_procs(name=name).spawn(name, Walker, folder, name, names)

    @endpoint
    def step(self):
        return [self.walkers.step.call_one().get(timeout=60) for _ in range(2)]


class Point:
    __slots__ = ("x",)


class Sleeper(Player):
    def __init__(self):
        self.point = Point()

    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=120)
        return context().generation, MARK
'''
)


class Drive:
    """Calls an endpoint over and over, on a thread, and keeps what is answered."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answers: list[Any] = []
        self.failure: BaseException | None = None
        self._call = call
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.answers.append(self._call())
        except BaseException as error:
            self.failure = error

    def is_going_on(self, num_answers: int = 1) -> None:
        """So many calls are answered, from here on."""
        wanted = len(self.answers) + num_answers
        wait_for(lambda: len(self.answers) >= wanted or self.failure, 30, what="an answer")
        self.check()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._is_over.set()

    def join(self) -> None:
        self._thread.join(90)


@contextmanager
def driven(
    *calls: Callable[[], Any], end: Callable[[], object] = lambda: None
) -> Iterator[list[Drive]]:
    """Makes the calls over and over within the block, each beside the others; then ``end``."""
    drives = [Drive(call) for call in calls]
    try:
        yield drives
    finally:
        for drive in drives:
            drive.stop()
        end()
        for drive in drives:
            drive.join()
    for drive in drives:
        drive.check()
