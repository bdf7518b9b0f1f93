"""What code that runs ahead of a commit does to the process, outside of all modules.

Exit handlers are taken back, and repeated by the commit. A thread that was started runs; it is
noted, so that whoever reads the report knows.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .flips import Action


class Outside:
    """What one thread did while it was watched. `threads` are the names of those it started."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self._handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """For the thread that calls; others do what they do."""
        me = threading.get_ident()
        register, start = atexit.register, threading.Thread.start

        def note_handler(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != me:
                return register(function, *args, **kwargs)
            self._handlers.append((function, args, kwargs))
            return function

        def note_thread(thread: threading.Thread) -> None:
            if threading.get_ident() == me:
                self.threads.append(thread.name)
            start(thread)

        atexit.register = note_handler  # type: ignore[assignment]
        threading.Thread.start = note_thread  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            atexit.register = register
            threading.Thread.start = start  # type: ignore[method-assign]

    def flips(self, live_of: Callable[[Any], Any]) -> Iterator[Action]:
        for function, args, kwargs in self._handlers:
            yield Action(_registering(live_of(function), args, kwargs))


def _registering(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Callable[[], None]]:
    def do() -> Callable[[], None]:
        # One that was edited runs once at the exit, not once for each of its versions.
        atexit.unregister(function)
        atexit.register(function, *args, **kwargs)
        return lambda: atexit.unregister(function)

    return do
