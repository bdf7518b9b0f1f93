"""The effects on the process, outside of all modules, of code that runs ahead of a commit.

Handlers that it sets for the exit, for signals and on loggers are removed, and the commit sets them
again. A thread that it starts keeps running; the report names it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from monarch_reload.live.registries import Registry
from monarch_reload.trial.held_back import Snapshot
from monarch_reload.undo_log import Action


class Outside:
    """The effects of one thread while it was watched.

    `threads` are the names of the threads it started. `loggers` are the loggers it touched, by
    name, each with its earlier handlers.
    """

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.loggers: dict[str, Snapshot] = {}
        self._handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._signals: dict[int, Any] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the effects of the calling thread inside the block; other threads are not
        affected."""
        me = threading.get_ident()
        register, start = atexit.register, threading.Thread.start
        set_handler = signal.signal
        add, remove = logging.Logger.addHandler, logging.Logger.removeHandler

        def note_logger(logger: logging.Logger) -> None:
            if threading.get_ident() == me and logger.name not in self.loggers:
                self.loggers[logger.name] = Snapshot(Registry(logger.handlers))

        def note_added(logger: logging.Logger, hdlr: logging.Handler) -> None:
            note_logger(logger)
            add(logger, hdlr)

        def note_removed(logger: logging.Logger, hdlr: logging.Handler) -> None:
            note_logger(logger)
            remove(logger, hdlr)

        def note_handler(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != me:
                return register(function, *args, **kwargs)
            self._handlers.append((function, args, kwargs))
            return function

        def note_signal(number: int, handler: Any) -> Any:
            if threading.get_ident() != me:
                return set_handler(number, handler)
            before = self._signals.get(number, signal.getsignal(number))
            self._signals[number] = handler
            return before

        def note_thread(thread: threading.Thread) -> None:
            if threading.get_ident() == me:
                self.threads.append(thread.name)
            start(thread)

        replaced: list[tuple[Any, str, Any, Any]] = [
            (atexit, "register", register, note_handler),
            (signal, "signal", set_handler, note_signal),
            (logging.Logger, "addHandler", add, note_added),
            (logging.Logger, "removeHandler", remove, note_removed),
            (threading.Thread, "start", start, note_thread),
        ]
        for owner, name, _, watching in replaced:
            setattr(owner, name, watching)
        try:
            yield
        finally:
            for owner, name, real, _ in replaced:
                setattr(owner, name, real)

    def flips(self, live_of: Callable[[Any], Any]) -> Iterator[Action]:
        for function, args, kwargs in self._handlers:
            yield Action(partial(_register, live_of(function), args, kwargs))
        for number, handler in self._signals.items():
            if signal.getsignal(number) is not live_of(handler):
                yield Action(partial(_handle, number, live_of(handler)))


def _register(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], None]:
    # An edited handler runs once at the exit, not once for each of its versions.
    atexit.unregister(function)
    atexit.register(function, *args, **kwargs)
    return lambda: atexit.unregister(function)


def _handle(number: int, handler: Any) -> Callable[[], None]:
    before = signal.signal(number, handler)

    def undo() -> None:
        if before is not None:  # else the handler was not installed from Python
            signal.signal(number, before)

    return undo
