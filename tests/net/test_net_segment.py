"""Shared memory within one process: a second mapping stands for another process's."""

from __future__ import annotations

import collections
import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from monarch.net.segment import NUM_HOLDS, PAGE_BYTES, Segment, view_region
from monarch.net.segment_door import SegmentDoor, hand_over


def segments() -> tuple[Segment, Segment]:
    """A segment as its owner sees it, and as another process does."""
    ours = Segment.create(NUM_HOLDS + 16 * PAGE_BYTES)
    ours.back(ours.size)
    return ours, Segment(os.dup(ours.fd))


def put(segment: Segment, text: bytes, hold: int = 0) -> None:
    segment.shared[hold] = 1
    segment.shared[NUM_HOLDS : NUM_HOLDS + len(text)] = text


def test_a_region_is_seen_as_it_was_written() -> None:
    ours, theirs = segments()
    put(ours, b"hello")
    view = view_region(theirs, NUM_HOLDS, 5, 0, private=False)
    assert bytes(view[:5]) == b"hello"
    assert not view.readonly


def test_a_hold_is_cleared_when_the_last_view_is_gone() -> None:
    ours, theirs = segments()
    put(ours, bytes(100), hold=3)
    view = view_region(theirs, NUM_HOLDS, 100, 3, private=False)
    array = np.frombuffer(view, np.uint8)[10:20]
    del view
    part = array[5:]
    del array
    assert ours.shared[3] == 1
    del part
    assert ours.shared[3] == 0


def test_a_private_view_hides_what_is_written_to_it() -> None:
    ours, theirs = segments()
    put(ours, b"first")
    view = view_region(theirs, NUM_HOLDS, 5, 0, private=True)
    view[:5] = b"mine!"
    assert ours.shared[NUM_HOLDS : NUM_HOLDS + 5] == b"first"
    del view
    put(ours, b"again")
    assert bytes(view_region(theirs, NUM_HOLDS, 5, 0, private=True)[:5]) == b"again"


def test_a_view_outlives_the_segments() -> None:
    other = Segment.create(NUM_HOLDS + PAGE_BYTES)
    put(other, b"stays")
    view = view_region(other, NUM_HOLDS, 5, 0, private=False)
    descriptor = f"/proc/self/fd/{other.fd}"
    assert "memfd" in os.readlink(descriptor)
    del other
    assert bytes(view[:5]) == b"stays"


def test_a_region_beyond_the_end_is_refused() -> None:
    ours, _ = segments()
    with pytest.raises(ValueError):
        view_region(ours, ours.size - PAGE_BYTES, 2 * PAGE_BYTES, 0, private=False)


def test_the_size_of_a_segment_is_sealed() -> None:
    _, theirs = segments()
    with pytest.raises(OSError):
        os.ftruncate(theirs.fd, PAGE_BYTES)


def _sealed(size: int, seals: int) -> int:
    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_only_memory_that_stays_is_taken_from_a_peer(tmp_path: Path) -> None:
    good = Segment.create(NUM_HOLDS + PAGE_BYTES)
    assert Segment.of_peer(os.dup(good.fd)).size == good.size
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, good.size)
    bad = {
        "unsealed": _sealed(good.size, 0),
        "may shrink": _sealed(good.size, fcntl.F_SEAL_GROW),
        "empty": _sealed(0, fcntl.F_SEAL_SHRINK),
        "no room": _sealed(NUM_HOLDS, fcntl.F_SEAL_SHRINK),
        "may not be written": _sealed(good.size, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE),
        "file": file,
        "null": os.open("/dev/null", os.O_RDWR),
        "cannot be sealed": os.memfd_create("none"),
    }
    for fd in bad.values():
        with pytest.raises((OSError, ValueError)):
            Segment.of_peer(fd)
    # Still the caller's, and open: nobody else closes it, now or later.
    gc.collect()
    for fd in bad.values():
        os.close(fd)


def test_huge_pages_are_not_taken_from_a_peer() -> None:
    """They may be missing when they are read."""
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages here: {error}")
    os.ftruncate(fd, 2 * 2**20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ValueError, match="huge"):
        Segment.of_peer(fd)
    os.close(fd)


def test_a_forked_child_gives_nothing_back_and_keeps_what_it_sees() -> None:
    ours, theirs = segments()
    put(ours, b"seen")
    view = view_region(theirs, NUM_HOLDS, 4, 0, private=False)
    child = os.fork()
    if child == 0:
        del view
        os._exit(0)
    os.waitpid(child, 0)
    assert ours.shared[0] == 1
    del view
    # Another child might look at it still.
    assert ours.shared[0] == 1


@pytest.fixture
def door(tmp_path: Path) -> Iterator[SegmentDoor]:
    door = SegmentDoor(f"{tmp_path}/door")
    yield door
    door.close()
    assert not os.path.exists(f"{tmp_path}/door")


def test_what_was_handed_over_outlives_the_sender(door: SegmentDoor, tmp_path: Path) -> None:
    segment = Segment.create(NUM_HOLDS + PAGE_BYTES)
    put(segment, b"from the dead")
    hand_over(f"{tmp_path}/door", "somebody 7", segment.fd)
    del segment
    ((name, fd),) = door.take()
    assert name == "somebody 7"
    assert Segment(fd).shared[NUM_HOLDS : NUM_HOLDS + 4] == b"from"
    assert door.take() == []


def test_a_door_that_is_full_or_shut_is_an_error_and_no_wait(
    door: SegmentDoor, tmp_path: Path
) -> None:
    ours, _ = segments()
    with pytest.raises(OSError):
        hand_over(f"{tmp_path}/nowhere", "a 1", ours.fd)
    sent = []

    def knock() -> None:
        hand_over(f"{tmp_path}/door", "a 1", ours.fd)
        sent.append(1)

    with pytest.raises(BlockingIOError):
        collections.deque(iter(knock, "never"), maxlen=0)
    taken = door.take()
    assert len(taken) == len(sent)
    for _, fd in taken:
        os.close(fd)


def test_only_the_user_may_knock_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a umask that takes nothing away, the mode must be right before there is a name.
    monkeypatch.setattr("os.chmod", lambda *about: pytest.fail("too late"))
    before = os.umask(0)
    try:
        door = SegmentDoor(f"{tmp_path}/door")
    finally:
        os.umask(before)
    assert os.stat(f"{tmp_path}/door").st_mode & 0o777 == 0o600
    door.close()


def test_no_door_in_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    ours, _ = segments()
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        SegmentDoor(f"{folder}/door")
    with pytest.raises(PermissionError):
        hand_over(f"{folder}/door", "a 1", ours.fd)
    assert not any(folder.iterdir())


def test_what_is_no_socket_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "door").write_text("precious")
    with pytest.raises(OSError):
        SegmentDoor(f"{tmp_path}/door")
    assert (tmp_path / "door").read_text() == "precious"
