"""How many messages and bytes may be under way to one receiver.

A **lane** is all that one process sends to one actor, or into one port, of another. At most a
window of its messages may be sent and not yet taken out of the receiver's mailbox. The sender finds
out with **marks**: after each part of the window it sends a message that the receiver answers when
that message's turn comes. The receiver takes a lane's messages in order, so the answer means that
everything before the mark was taken. The receiver counts nothing, and there is one mark for
hundreds of messages.

A full lane always has a mark under way, so the sender always learns when there is room again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_MARKS_IN_MESSAGES = 16
_MARKS_IN_BYTES = 4


class Window(NamedTuple):
    """The credit of a sender: how many messages, and bytes of payload, may be under way."""

    num_messages: int
    num_bytes: int


class Lane:
    """The sender's record of one lane: its messages under way. The caller's lock guards it."""

    __slots__ = (
        "_marked", "_num_bytes", "_open_bytes", "_open_messages", "_part", "_window",
        "num_messages",
    )  # fmt: skip

    def __init__(self, window: Window) -> None:
        self._window = window
        self._part = Window(
            max(1, window.num_messages // _MARKS_IN_MESSAGES),
            max(1, window.num_bytes // _MARKS_IN_BYTES),
        )
        #: How many messages are not known to be taken.
        self.num_messages = 0
        self._num_bytes = 0
        self._open_messages = 0
        self._open_bytes = 0
        self._marked: deque[Window] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent. The size of that message does not matter, because a
        message of any size must be sendable.
        """
        return (
            self.num_messages < self._window.num_messages
            and self._num_bytes < self._window.num_bytes
        )

    def sent(self, num_bytes: int) -> bool:
        """Count a sent message; return true if a mark must follow it."""
        self.num_messages += 1
        self._num_bytes += num_bytes
        self._open_messages += 1
        self._open_bytes += num_bytes
        part = self._part
        if self._open_messages < part.num_messages and self._open_bytes < part.num_bytes:
            return False
        self._marked.append(Window(self._open_messages, self._open_bytes))
        self._open_messages = self._open_bytes = 0
        return True

    def answered(self) -> None:
        """Note that the oldest mark was answered: the receiver has taken all messages sent before
        it."""
        taken = self._marked.popleft()
        self.num_messages -= taken.num_messages
        self._num_bytes -= taken.num_bytes
