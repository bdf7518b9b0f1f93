from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.config import configured
from monarch.errors import MonarchError
from monarch.runtime.links.overflow import Overflow

messages = st.lists(st.binary(max_size=200), max_size=4)


@settings(deadline=None)
@given(st.lists(st.one_of(messages, st.none()), max_size=100), st.integers(1, 400))
def test_what_goes_in_comes_out_once_and_in_order(
    steps: list[list[bytes] | None], limit: int
) -> None:
    overflow = Overflow(max_tail_bytes=limit, segment_bytes=2 * limit)
    model = deque[list[bytes]]()
    try:
        for step in steps:
            if step is not None:
                overflow.push(step)
                model.append(step)
            elif model:
                assert overflow.pop() == model.popleft()
            assert len(overflow) == len(model)
        while model:
            assert overflow.pop() == model.popleft()
    finally:
        overflow.close()


def test_nothing_is_left_in_the_directory_and_no_descriptor_stays(tmp_path: Path) -> None:
    with configured(spill_dir=str(tmp_path)):
        overflow = Overflow()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(2000):
            overflow.push([b"%d" % number, bytes(1000)])
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert os.listdir(tmp_path) == []
        for number in range(2000):
            assert overflow.pop()[0] == b"%d" % number
        overflow.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_told_to_the_sender_and_what_was_kept_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overflow = Overflow()
    write, is_full = os.pwrite, False

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if not is_full:
            return write(fd, data, offset)
        if len(data) <= 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: len(data) - 1000], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    big = bytes(300_000)
    overflow.push([b"first", big])
    is_full = True
    with pytest.raises(MonarchError, match=r"No space left.*MONARCH_SPILL_DIR"):
        overflow.push([b"lost", big])
    is_full = False
    overflow.push([b"second", big])
    assert len(overflow) == 2
    assert [overflow.pop()[0], overflow.pop()[0]] == [b"first", b"second"]
    overflow.close()
