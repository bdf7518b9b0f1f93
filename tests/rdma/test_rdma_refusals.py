"""What is refused says what was wrong, and what to do."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from monarch.rdma import RDMAAction, RDMABuffer, RemoteMemoryError


def _dropped(buffer: RDMABuffer) -> Any:
    buffer.drop().get()
    return buffer.read_into(bytearray(16)).get()


def _freed(buffer: RDMABuffer) -> Any:
    whole = RDMABuffer(bytearray(16))
    part = whole[:]
    del whole  # All that held the memory.
    return part.read_into(bytearray(16)).get()


def _overlapping(buffer: RDMABuffer) -> Any:
    into = bytearray(16)
    return RDMAAction().read_remote(into, buffer).read_remote(into, buffer)


# Each with what it has to say: what was wrong, and what to do.
MISTAKES: dict[str, tuple[Callable[[RDMABuffer], Any], str, str]] = {
    "nothing to register": (lambda b: RDMABuffer(bytearray()), "size 0", "give memory of a byte"),
    "a slice of nothing": (lambda b: b[9:3], r"\[9:3\] of 16 bytes is empty", "a smaller number"),
    "a small destination": (
        lambda b: b.read_into(bytearray(3)), "destination has 3 bytes, and the buffer 16",
        r"read a part, buffer\[a:b\]",
    ),
    "a large source": (
        lambda b: b.write_from(bytes(17)), "source has 17 bytes, and the buffer 16", "write a part",
    ),
    "the same in an action": (
        lambda b: RDMAAction().write_remote(b, bytes(17)), "source has 17", "write a part",
    ),
    "a destination that may not be written": (
        lambda b: b.read_into(bytes(16)), "read-only", "Give a bytearray",
    ),
    "a word beyond the end": (
        lambda b: b.fetch_add(1, 12), "no 64-bit word at byte 12 of 16", "the last begins at 8",
    ),
    "a word across": (
        lambda b: b[1:].fetch_add(1), "byte 0 is not where", "a multiple of 8",
    ),
    "no number of seconds": (
        lambda b: b.read_into(bytearray(16), timeout=-1), "-1 s is out of range", "give 0 to",
    ),
    "a word into too much": (
        lambda b: RDMAAction().fetch_add(b, bytearray(4), 1), "not into 4 of cpu",
        r"give a bytearray\(8\), or None",
    ),
    "two steps into one memory": (_overlapping, "overlaps local memory", "use two actions"),
    "a buffer that was dropped": (_dropped, "it was dropped", "Have its owner make another"),
    "memory that was freed": (_freed, "was freed", "refer to the memory"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_to_do(mistake: str) -> None:
    act, what, advice = MISTAKES[mistake]
    memory = bytearray(16)
    with pytest.raises((ValueError, OverflowError, RemoteMemoryError)) as caught:
        act(RDMABuffer(memory))
    assert re.search(what, str(caught.value)), caught.value
    assert re.search(advice, str(caught.value)), caught.value


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors of Python 3.10 have no notes")
@pytest.mark.parametrize("num_bytes", [16, 32 * 2**20])
def test_what_fails_later_names_the_line_that_began_it(num_bytes: int) -> None:
    """Small ones are done at once, and large ones by another thread."""
    memory, into = bytearray(num_bytes), bytearray(num_bytes)
    buffer = RDMABuffer(memory)
    buffer.drop().get()
    begun = buffer.read_into(into)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    action = RDMAAction().write_remote(buffer, into)
    with pytest.raises(RemoteMemoryError) as caught:
        begun.get()
    assert f"begun at {__file__}, line {line}" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(RemoteMemoryError) as caught:
        action.submit().get()
    assert f"begun at {__file__}" in "".join(traceback.format_exception(caught.value))
