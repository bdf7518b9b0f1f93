"""The primitives that a loop waits with: epoll and eventfd on Linux, their stand-ins elsewhere.

Only Linux has those two. An author's laptop may be a Mac, where kqueue, through `selectors`, and a
pipe are used.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors

# As epoll has them, too.
READ = select.POLLIN
WRITE = select.POLLOUT


def new_poller() -> select.epoll | SelectorPoller:
    return select.epoll() if hasattr(select, "epoll") else SelectorPoller()


class SelectorPoller:
    """Stands in for ``select.epoll``: `poll` returns pairs of a descriptor and a mask of events."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, events: int) -> None:
        self._selector.register(fd, _to_selector(events))

    def modify(self, fd: int, events: int) -> None:
        self._selector.modify(fd, _to_selector(events))

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        return [
            (
                key.fd,
                (READ if events & selectors.EVENT_READ else 0)
                | (WRITE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in self._selector.select(timeout)
        ]

    def fileno(self) -> int:
        """Return the selector's descriptor. Raises ``OSError`` if the system's selector has
        none."""
        number = getattr(self._selector, "fileno", None)  # kqueue has one
        if number is None:
            raise OSError("this system's selector cannot be waited for")
        return int(number())

    def close(self) -> None:
        self._selector.close()


def _to_selector(events: int) -> int:
    return (selectors.EVENT_READ if events & READ else 0) | (
        selectors.EVENT_WRITE if events & WRITE else 0
    )


class EventFd:
    """A descriptor that can be read once it was set, until it is cleared."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class WakePipe:
    """A pipe in the place of an eventfd."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        # A full pipe can be read: that is all that was wanted.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read, 4096)) == 4096:
                pass

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


WakeUp = EventFd | WakePipe


def new_wake_up() -> WakeUp:
    return EventFd() if hasattr(os, "eventfd") else WakePipe()
