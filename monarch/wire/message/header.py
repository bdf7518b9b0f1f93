"""Headers: what all messages begin with.

A message is a header and, for those that carry user data, a payload with buffers beside it.
Headers hold only what agents need to route, order and account; they never hold pickles. Validity
is checked where a header is decoded, and trusted afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.wire.address import Uid

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, array_like=True):
    """Base of all headers."""


class Answer(Message, tag=29):
    """To a control message. ``body`` is data, ``error`` is text for people, never a pickle."""

    port: int
    sender: Uid
    body: dict[str, Any] = {}
    error: str = ""
