"""Two authors, a host that loses power at any step, and somebody who meddles in between.

Whatever happens: nothing that somebody wrote on the host is lost, what a commit has put holds what
was pushed, and nothing is believed of a file that reading it would not say.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_sync import HostView, Outgoing, Push, Replica, Scanner, Workspace
from monarch_sync.content.digest import digest_bytes
from monarch_sync.content.stamps import TICK_NS, digest_of
from monarch_sync.messages import Abort, Commit, Committed, Staged
from monarch_sync.tree.entry import from_wire
from tests.sync.happenings import NAMES, happen
from tests.sync.test_sync_crash import FailingDisk, Stopped

LONG_AGO = 1_600_000_000


class Meddler:
    """Works in a replica's folder; ``marks`` are what it has written and not taken away again."""

    def __init__(self, root: Path, rand: random.Random) -> None:
        self._root = root
        self._rand = rand
        self._num_marks = 0
        self.marks: set[bytes] = set()

    def files(self) -> list[Path]:
        found = (Path(at, name) for at, _, names in os.walk(self._root) for name in names)
        return sorted(path for path in found if stat.S_ISREG(path.lstat().st_mode))

    def check(self) -> None:
        there = b"\0".join(path.read_bytes() for path in self.files())
        assert [mark for mark in self.marks if mark not in there] == []

    def meddle(self, times: int) -> None:
        acts = (
            self._write, self._append, self._replace, self._delete, self._touch, self._rename,
            self._make_folder, self._add, self._add, self._remove_folder,
        )  # fmt: skip
        for _ in range(times):
            try:
                self._rand.choice(acts)()
            except OSError:
                pass  # a file where a folder is needed, a link that leads nowhere

    def _file(self) -> Path:
        files = self.files()
        if not files:
            raise FileNotFoundError
        return self._rand.choice(files)

    def _mark(self) -> bytes:
        self._num_marks += 1
        mark = b"mark %d." % self._num_marks
        self.marks.add(mark)
        return mark

    def _forget(self, path: Path) -> None:
        content = path.read_bytes()
        self.marks = {mark for mark in self.marks if mark not in content}

    def _write(self) -> None:
        path = self._file()
        self._forget(path)
        path.write_bytes(self._mark())

    def _append(self) -> None:
        with open(self._file(), "ab") as file:
            file.write(self._mark())

    def _replace(self) -> None:
        """By an old file, of which its times tell nothing."""
        path, beside = self._file(), self._root.with_name("beside")
        self._forget(path)
        beside.write_bytes(self._mark())
        os.utime(beside, (LONG_AGO + self._num_marks,) * 2)
        beside.rename(path)

    def _delete(self) -> None:
        path = self._file()
        self._forget(path)
        path.unlink()

    def _touch(self) -> None:
        os.utime(self._file())

    def _rename(self) -> None:
        path = self._file()
        other = path.with_name(f"{path.name}2")
        if not os.path.lexists(other):
            path.rename(other)

    def _make_folder(self) -> None:
        path = self._file()
        self._delete_as_folder(path)
        path.mkdir()
        (path / "in").write_bytes(self._mark())

    def _add(self) -> None:
        path = self._root.joinpath(*self._rand.choices(NAMES, k=self._rand.randint(1, 4)))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path):
            path.write_bytes(self._mark())

    def _remove_folder(self) -> None:
        folders = sorted(Path(at) for at, _, _ in os.walk(self._root))[1:]
        if folders:
            self._delete_as_folder(self._rand.choice(folders))

    def _delete_as_folder(self, path: Path) -> None:
        for file in self.files():
            if file == path or path in file.parents:
                self._forget(file)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


class Host:
    """A replica whose power may fail, and the meddler in its folder."""

    def __init__(self, root: Path, rand: random.Random, can_exchange: bool, tick_ns: int) -> None:
        self._root = root
        self._rand = rand
        self._can_exchange = can_exchange
        self._tick_ns = tick_ns
        self.disk = FailingDisk(can_exchange=can_exchange)
        self.replica = Replica(root, self.disk, tick_ns=tick_ns)
        self.meddler = Meddler(root, rand)

    def check(self) -> None:
        self.meddler.check()
        replica = self.replica
        replica.manifest.check()
        for path in self.meddler.files():
            assert replica._stamps.digest_of(str(path)) == digest_of(str(path)), path
        for name in [name for name in replica._store._sizes if "." not in name]:
            found = replica._store.find(bytes.fromhex(name))
            assert found is None or digest_bytes(Path(found[0]).read_bytes()).hex() == name
        generations = [past.generation for past in replica.past()]
        assert generations == sorted(set(generations), reverse=True)

    def start_again(self) -> None:
        """Recovery may be cut short, too."""
        self.replica.close()
        for chance in (0.3, 0.5, 0.5, 0.0):
            self.disk = FailingDisk(can_exchange=self._can_exchange)
            if self._rand.random() < chance:
                self.disk.arm(self._rand.randrange(30), Stopped())
            try:
                self.replica = Replica(self._root, self.disk, tick_ns=self._tick_ns)
            except Stopped:
                continue
            self.disk.steps_left = -1
            return

    def put(self, push: Push, meddles: Iterator[int]) -> None:
        """Stage and commit, with some meddling before each step."""
        replica, meddle = self.replica, self.meddler.meddle
        meddle(next(meddles))
        step: Outgoing | Staged = push.first()
        while isinstance(step, Outgoing):
            step = push.receive(replica.handle(step.message, step.blobs))
        meddle(next(meddles))
        if self._rand.random() < 0.1:
            replica.handle(Abort(push.generation))
            return
        reply = replica.handle(Commit(push.generation))
        assert isinstance(reply, Committed), reply
        for raw, _ in step.files:
            entry = replica.manifest.get(path := from_wire(raw))
            if entry is not None and entry.is_file:
                assert digest_of(f"{self._root}/{path}") == entry.digest, path
        push.committed(reply)
        meddle(next(meddles))
        if self._rand.random() < 0.8:
            replica.settle()


def drive(
    base: Path, seed: int, num_pushes: int, *, can_exchange: bool = True, tick_ns: int = TICK_NS
) -> None:
    rand = random.Random(seed)
    host = Host(base / "replica", rand, can_exchange, tick_ns)
    authors = []
    for number in range(2):
        folder = base / f"author{number}/project"
        folder.mkdir(parents=True)
        view = HostView(is_near=rand.random() < 0.5)
        authors.append((folder, Scanner(Workspace({folder: ""})), view))
    for _ in range(num_pushes):
        folder, scanner, view = rand.choice(authors)
        for _ in range(rand.randint(0, 6)):
            happen(folder, rand)
        manifest, generation = scanner.scan().manifest, host.replica.generation + 1
        push = Push(scanner.workspace, manifest, view, generation, scanner.contents)
        if rand.random() < 0.35:
            host.disk.arm(rand.randrange(60), Stopped())
        try:
            host.put(push, iter(rand.choices([0, 0, 1, 3], k=3)))
        except Stopped:
            host.disk.steps_left = -1
            host.meddler.meddle(rand.choice([0, 0, 1]))
            host.start_again()
        host.disk.steps_left = -1
        host.check()
        if rand.random() < 0.1:
            host.start_again()
            host.check()
    host.replica.close()


@pytest.mark.long_but(6)
@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_whoever_meddles_nothing_is_lost_and_nothing_is_believed(
    tmp_path: Path, seed: int, can_exchange: bool
) -> None:
    drive(tmp_path, seed, 25, can_exchange=can_exchange, tick_ns=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_however_often(tmp_path: Path, seed: int) -> None:
    drive(tmp_path, seed, 25)
