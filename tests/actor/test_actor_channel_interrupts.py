"""Ctrl-C while a channel is waited for loses no message, whatever it comes between."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from monarch.actor import Channel, PortReceiver
from tests.support import wait_for

_FILES = ("actor/channel.py", "actor/future.py", "actor/replies.py", "runtime/promise.py")


def interrupted(wait: Callable[[], Any], number: int) -> Any:
    """What ``wait`` returns, or ``None`` if Ctrl-C has kept it from that; and whether it has come.
    It does at the ``number``-th moment at which Python looks for signals: where a function of ours
    begins, or one of C has returned to it."""
    left = number

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.endswith(_FILES):
            return
        if code.co_name == "_abandon":
            return  # A finalizer of an earlier channel: Python lets no interrupt out of one.
        left -= 1
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        value = wait()
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.setprofile(None)
    return value, left <= 0


def answer(future: Any) -> Any:
    """The value, or the text of the error that was sent."""
    try:
        return future.get(timeout=0)
    except ValueError as error:
        return str(error)


def received(receiver: PortReceiver[Any]) -> list[Any]:
    """All that is there."""
    found = []
    while True:
        try:
            found.append(answer(receiver.recv()))
        except TimeoutError:
            return found


def arrived(receiver: PortReceiver[Any], number: int) -> None:
    wait_for(lambda: len(receiver._queue.items) == number)


def two_messages(first: Any = "first") -> PortReceiver[Any]:
    port, receiver = Channel.open()
    (port.exception if isinstance(first, Exception) else port.send)(first)
    port.send("second")
    wait_for(lambda: len(receiver._queue.items) == 2)
    return receiver


@pytest.mark.parametrize("first", ["first", ValueError("first")], ids=["value", "error"])
def test_a_message_is_returned_or_comes_next_wherever_ctrl_c_comes(first: Any) -> None:
    number, has_come = 0, True
    while has_come:
        number += 1
        receiver = two_messages(first)
        value, has_come = interrupted(lambda r=receiver: answer(r.recv()), number)
        got = [] if value is None else [value]
        assert got + received(receiver) == ["first", "second"], f"at moment {number}"
    assert number > 20, "a look for signals in each step"


def test_a_message_that_is_waited_for_is_returned_or_comes_next_wherever_ctrl_c_comes() -> None:
    number, has_come = 0, True
    while has_come:
        number += 1
        port, receiver = Channel.open()
        queue, is_over = receiver._queue, threading.Event()

        def send(port: Any = port, queue: Any = queue, is_over: Any = is_over) -> None:
            wait_for(lambda: queue._waiting or is_over.is_set())
            port.send("first")
            port.send("second")

        sending = threading.Thread(target=send)
        sending.start()
        value, has_come = interrupted(lambda r=receiver: r.recv().get(timeout=60), number)
        is_over.set()
        sending.join()
        got = [] if value is None else [value]
        left = 2 - len(got)
        wait_for(lambda q=queue, left=left: len(q.items) == left)
        assert got + received(receiver) == ["first", "second"], f"at moment {number}"


def test_a_future_that_was_interrupted_may_be_asked_again() -> None:
    number, has_come = 0, True
    while has_come:
        number += 1
        future = (receiver := two_messages()).recv()
        _, has_come = interrupted(lambda f=future: answer(f), number)
        assert answer(future) == "first", f"at moment {number}"
        assert answer(receiver.recv()) == "second", f"at moment {number}"


def test_a_sender_hears_that_all_was_taken_wherever_ctrl_c_comes() -> None:
    number, has_come = 0, True
    while has_come:
        number += 1
        receiver, told = two_messages(), list[int]()
        receiver._queue.mark(lambda t=told, n=number: t.append(n))
        assert answer(receiver.recv()) == "first"
        _, has_come = interrupted(lambda r=receiver: answer(r.recv()), number)
        received(receiver)
        assert told, f"at moment {number}"
