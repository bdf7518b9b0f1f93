"""Sees what is sent while a fence of this process is up.

What goes to one who stands at the fence waits there, and so does whoever waits for its answer:
only then does a fence that others have not come to harm anybody. See
``core.code_switch.coordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monarch.wire.address import Uid

__all__ = ["BehindFence"]


class BehindFence:
    """From any thread. Asked at each call, so that it costs one look where no fence is up."""

    def __init__(self) -> None:
        self.is_watched = False
        self._sent: Callable[[Iterable[Uid]], None] = lambda procs: None
        self._stopped: Callable[[], None] = lambda: None

    def watch(self, sent: Callable[[Iterable[Uid]], None], stopped: Callable[[], None]) -> None:
        """Tell ``sent`` the procs to which something is sent, until ``forget``; and ``stopped``
        that something waits here, because the fence itself waits here, behind a slow actor.

        Call it before the fence is cast; ``sent`` is called after a message was sent. So none
        behind the fence is missed, though one before it may be taken for one behind it.
        """
        self._sent, self._stopped = sent, stopped
        self.is_watched = True

    def forget(self) -> None:
        self.is_watched = False

    def sent(self, procs: Iterable[Uid], *, is_stopped: bool = False) -> None:
        """Something was sent to these, or ``is_stopped``."""
        if self.is_watched and is_stopped:
            self._stopped()
        elif self.is_watched:
            self._sent(procs)
