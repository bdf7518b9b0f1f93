"""Files of the author's that become something else between the scan and the push."""

from __future__ import annotations

import functools
import os
import random
import signal
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monarch_sync import MovedUnderfoot, Outgoing, Push, Replica, Scanner, Workspace
from monarch_sync.content.digest import LARGE_BYTES, digest_bytes
from monarch_sync.scanning.contents import _MAX_DELTA_BYTES as MAX_DELTA_BYTES
from monarch_sync.scanning.reading import read_file
from tests.sync.author import Author
from tests.sync.trees import read_tree

LARGE = random.Random(1).randbytes(LARGE_BYTES + 100_000)
EDITED = LARGE[:5000] + b"edit" + LARGE[5004:] + b"more" * 20_000


def becomes_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def becomes_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def becomes_a_link(path: Path) -> None:
    path.rename(path.parent.with_name("elsewhere"))
    path.symlink_to(path.parent.with_name("elsewhere"))


def becomes_shorter(path: Path) -> None:
    os.truncate(path, LARGE_BYTES + 100)


def becomes_empty(path: Path) -> None:
    os.truncate(path, 0)


def becomes_another(path: Path) -> None:
    path.write_bytes(os.urandom(len(LARGE)))


MISHAPS = [
    becomes_a_pipe, becomes_a_folder, becomes_a_link, becomes_shorter, becomes_empty,
    becomes_another, Path.unlink,
]  # fmt: skip


@contextmanager
def impatient(seconds: int = 20) -> Iterator[None]:
    """Who waits for a pipe would wait for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for somebody to write"))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def get_ready(push: Push, replica: Replica) -> None:
    step: object = push.first()
    while isinstance(step, Outgoing):
        step = push.receive(replica.handle(step.message, step.blobs))


@pytest.mark.parametrize("mishap", MISHAPS)
@pytest.mark.parametrize("was_there", [False, True])
def test_the_author_is_told_to_look_again(
    folder: Path, replica: Replica, mishap: Callable[[Path], None], was_there: bool
) -> None:
    path = folder / "big"
    author = Author(folder, replica)
    if was_there:
        path.write_bytes(LARGE)
        author.push()
    path.write_bytes(EDITED)
    scanner: Scanner = author.scanner
    manifest = scanner.scan().manifest
    mishap(path)
    push = Push(author.workspace, manifest, author.view, 2, scanner.contents)
    with impatient(), pytest.raises(MovedUnderfoot):
        get_ready(push, replica)


def test_a_large_file_that_is_cut_short_while_it_is_read_ends_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "big"
    path.write_bytes(LARGE)
    content = read_file(path)
    os.truncate(path, 0)
    assert digest_bytes(content) == digest_bytes(LARGE)
    assert os.listdir(folder) == ["big"]


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, len(LARGE)])
@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("has_room", [True, False])
def test_what_is_read_is_what_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, has_room: bool, is_held: bool
) -> None:
    path = folder / "file"
    path.write_bytes(LARGE[:size])
    if not has_room:

        def fail(folder: str | None) -> None:
            raise PermissionError

        monkeypatch.setattr("monarch_sync.scanning.reading._nameless", fail)
    content = read_file(path) if is_held else read_file(path, max_held_bytes=0)
    is_mapped = size >= LARGE_BYTES and (has_room or not is_held)
    assert isinstance(content, memoryview) is is_mapped
    assert bytes(content) == LARGE[:size]


def test_where_a_file_must_have_a_name_none_comes_to_be_in_the_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches it would be told, and on NFS it would stay in sight as long as it is read."""
    path = folder / "big"
    path.write_bytes(LARGE)
    before = folder.stat().st_mtime_ns
    monkeypatch.setattr("tempfile._O_TMPFILE_WORKS", False, raising=False)
    monkeypatch.delattr(os, "O_TMPFILE")
    content = read_file(path)
    assert isinstance(content, memoryview)
    assert digest_bytes(content) == digest_bytes(LARGE)
    assert folder.stat().st_mtime_ns == before


def test_no_copy_fills_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "big"
    path.write_bytes(LARGE)
    looked: list[object] = []

    def usage(place: int) -> object:
        looked.append(place)
        return types.SimpleNamespace(free=len(LARGE) * 1.9)

    # Not every file system has files without a name.
    nameless = functools.partial(tempfile.TemporaryFile, buffering=0)
    monkeypatch.setattr("monarch_sync.scanning.reading._nameless", lambda _: nameless())
    monkeypatch.setattr("monarch_sync.scanning.reading.shutil.disk_usage", usage)
    monkeypatch.setattr("monarch_sync.scanning.reading._share_blocks", lambda *_: False)
    monkeypatch.setattr(
        "monarch_sync.scanning.reading.copy_range", lambda *_: pytest.fail("it copies")
    )
    assert isinstance(read_file(path), bytes)
    assert len(looked) == 2, "nor the one for temporary files"
    monkeypatch.setattr("monarch_sync.scanning.reading._share_blocks", lambda *_: True)
    # Blocks that are shared take no room.
    monkeypatch.setattr("monarch_sync.scanning.reading._mapped", lambda _: memoryview(b"shared"))
    assert bytes(read_file(path)) == b"shared"


def test_a_long_delta_is_not_remembered(folder: Path, replica: Replica) -> None:
    path = folder / "big"
    path.write_bytes(LARGE)
    author = Author(folder, replica)
    author.push()
    for edit in (bytes([LARGE[0] ^ 1]), b"2" * 3_000_000):
        path.write_bytes(edit + LARGE[len(edit) :])
        author.push([path])
    assert read_tree(replica.root)["big"] == path.read_bytes()
    (made,) = author.scanner.contents._deltas.values()
    assert made is not None
    assert len(made[1]) < MAX_DELTA_BYTES


def test_a_file_that_was_emptied_to_be_written_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = types.SimpleNamespace(
        time_ns=time.time_ns, monotonic=lambda: sum(slept), sleep=slept.append
    )
    monkeypatch.setattr("monarch_sync.scanning.readings.time", clock)
    path = folder / "a"
    path.write_bytes(b"before")
    scanner = Scanner(Workspace({folder: ""}))
    scanner.scan()

    def size() -> int:
        entry = scanner.scan().manifest.get("a")
        assert entry is not None
        return entry.size

    with path.open("wb") as file:

        def write(seconds: float) -> None:
            file.write(b"after it")
            file.close()

        clock.sleep = write
        assert size() == len(b"after it")
    with path.open("wb"):
        # Whoever never writes holds nobody up for long.
        clock.sleep = slept.append
        assert size() == 0
        assert sum(slept) < 1.0
    path.write_bytes(b"again")
    assert size() == len(b"again")
    path.write_bytes(b"")
    clock.sleep = lambda _: pytest.fail("it waits")
    assert size() == 0, "nobody has it open"
