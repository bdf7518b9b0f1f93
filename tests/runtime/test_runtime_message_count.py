"""A call costs one message out and one back, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.config import configured
from monarch.net.transport import Frames
from monarch.net.unix_connection import UnixConnection
from monarch.runtime import process
from monarch.wire.codec import unpack

NUM_CALLS = 50


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value


@pytest.fixture(autouse=True)
def no_questions() -> Iterator[None]:
    """Whether a proc hangs is asked now and then; not while we count."""
    with configured(hang_timeout_seconds=0.0):
        yield


@pytest.mark.long
def test_calls_are_one_message_out_and_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    echo.echo.call(0).get(timeout=30)  # connections are made, introductions over

    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    node = process.current().node
    send, dispatch = UnixConnection.send, node.dispatch

    def counted_send(self: UnixConnection, frames: Frames) -> None:
        sent[type(unpack(frames).message).__name__] += 1
        send(self, frames)

    def counted_dispatch(envelope: Any) -> None:
        received[type(envelope.message).__name__] += 1
        dispatch(envelope)

    monkeypatch.setattr(UnixConnection, "send", counted_send)
    monkeypatch.setattr(node, "dispatch", counted_dispatch)
    one = echo.slice(gpus=1)
    for number in range(NUM_CALLS):
        assert one.echo.call_one(number).get(timeout=30) == number
    echo.echo.call(1).get(timeout=30)

    assert sent == {"Call": NUM_CALLS + 2}
    # Soon after its birth each proc says once what it has imported.
    assert received.pop("Imported", 0) <= 2
    assert received == {"Reply": NUM_CALLS + 2}
    procs.stop().get(timeout=30)
