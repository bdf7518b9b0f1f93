"""Hands an arrived message to its receiver, so that a bad message does no harm."""

from __future__ import annotations

from collections.abc import Callable

from monarch.errors import WireError
from monarch.net.rare_log import RareLog
from monarch.net.transport import Frames, Receive


def take(receive: Receive, frames: Frames, peer: Callable[[], str], rare: RareLog) -> None:
    """Call ``receive`` with a message. An error that it raises is logged, once for each kind, with
    the name of the ``peer``.

    The connection goes on: the next message is whole again.
    """
    try:
        receive(frames)
    except WireError as error:
        kind = str(error)[:20]
        rare.warning(kind, "dropped a message from %s: %s", peer(), error)
    except Exception as error:
        rare.exception(type(error).__name__, "could not take a message from %s", peer())
