"""The interface of a loop: the only place of a node where callbacks run, with the clock they
use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer:
    """A call that is due at ``when`` on the loop's clock; ``cancel`` calls it off."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Loop(Protocol):
    """Runs callbacks one at a time: when a source is readable, when a timer is due, or when
    asked."""

    def start(self) -> None: ...

    def is_current(self) -> bool:
        """Whether the caller is a callback of this loop."""
        ...

    def time(self) -> float:
        """Return the time on the loop's clock, in seconds."""
        ...

    def call_soon(self, action: Callable[[], None]) -> object:
        """Run ``action`` on the loop, in order of the calls. From any thread."""
        ...

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` on the loop after ``seconds``. From any thread."""
        ...

    def add_reader(self, fd: int, ready: Callable[[], object]) -> None:
        """Call ``ready`` whenever ``fd`` can be read. On the loop only."""
        ...

    def remove_reader(self, fd: int) -> None: ...

    def run_on_loop(self, action: Callable[[], Any], timeout: float | None = None) -> Any:
        """Run ``action`` on the loop and return its result. Blocks other threads only."""
        ...

    def stop(self, timeout: float = 5.0) -> None: ...
