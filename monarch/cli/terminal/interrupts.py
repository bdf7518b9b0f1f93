"""The effects of Ctrl-C, SIGTERM and SIGHUP on a command, by what it is doing.

- a run: the first asks it to save and stop, a second Ctrl-C ends it (`stop_on_interrupt`);
- a push: before hosts are asked for anything it ends at once; then it is taken back, and a second
  Ctrl-C waits for that (`push_taken_back`);
- a command of ``monarch sync``: SIGTERM and SIGHUP do what Ctrl-C does (`asked_to_end`);
- a look at the workspace: it ends at once (`left_at_once`);
- an import: one that a library swallowed takes effect after it (`interrupt_kept`);
- the end of a command: it ends at once (`at_once_from_here`).

Messages to ranks are kept whole by ``monarch.runtime.uninterrupted``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Protocol

from monarch.cli.terminal.keys import restore_terminal

INTERRUPTED = 130  # the status of a command that Ctrl-C has ended

# Of a batch system that wants its machines back, and of a terminal that was closed.
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)


class Stoppable(Protocol):
    """A run, or several of them, that saves and stops when it is asked to."""

    @property
    def is_stopping(self) -> bool: ...

    @property
    def can_save(self) -> bool: ...

    def stop(self) -> None: ...

    def message(self, text: str) -> None: ...


@contextmanager
def stop_on_interrupt(records: Sequence[Stoppable]) -> Iterator[None]:
    """Within, the first Ctrl-C asks the recipes to save and return.

    A second one raises ``KeyboardInterrupt``. SIGTERM and SIGHUP ask too, however often they come,
    as a sender often sends one twice. Under ``nohup``, SIGHUP stays ignored.
    """
    if not records:
        yield
        return
    from monarch.runtime.ends.late_thread import run_aside

    handler_before = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: FrameType | None) -> None:
        hint = ""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, handler_before)
            hint = "; Ctrl-C again stops at once"
        elif records[0].is_stopping:
            return
        for record in records:
            record.stop()
        # On another thread: this one may be in the middle of a line, and must not begin a second.
        effect = "what was learned is saved after this step"
        if not any(record.can_save for record in records):
            effect = "there are no ranks to save anything of, and the last checkpoint stays"
        text = f"stopping: {effect}{hint}"
        run_aside(lambda: records[0].message(text), name="monarch-stopping")

    with _handling((signal.SIGINT, *_REQUESTS), on_signal):
        yield


@contextmanager
def push_taken_back(only_looks: Callable[[], bool]) -> Iterator[None]:
    """Within, the first Ctrl-C ends a push, which then undoes everything.

    A second Ctrl-C only prints that this is in progress, and a third ends the program at once.
    While ``only_looks`` returns true, the first one ends it at once: when the author is gone, the
    hosts drop the contents that were sent ahead.
    """
    num_pressed = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal num_pressed
        num_pressed += 1
        if num_pressed == 1 and only_looks():
            _leave_saying(b"\ninterrupted; nothing was pushed\n")
        if num_pressed == 1:
            raise KeyboardInterrupt
        if num_pressed > 2:
            restore_terminal()
            os._exit(130)
        os.write(2, b"\nputting everything back; once more leaves it half-done\n")

    with _handling((signal.SIGINT,), on_signal):
        yield


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """At the end of the block, raise the Ctrl-C that code within has swallowed.

    Some libraries are imported inside a `try` that catches every exception.
    """
    handler_before = signal.getsignal(signal.SIGINT)
    if not callable(handler_before):
        yield
        return
    is_pressed = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        is_pressed = True
        handler_before(number, frame)

    with _handling((signal.SIGINT,), on_signal):
        yield
    if is_pressed:
        raise KeyboardInterrupt


@contextmanager
def _handling(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """In the block, let ``handler`` handle these signals. Does nothing on another than the main
    thread.

    Except for SIGINT, a signal that has a handler already, or is ignored, keeps that.
    """
    handlers_before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers_before = {number: signal.getsignal(number) for number in numbers}
    for number, handler_before in handlers_before.items():
        if number == signal.SIGINT or handler_before is signal.SIG_DFL:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in handlers_before.items():
            signal.signal(number, handler_before)


@contextmanager
def asked_to_end() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP do what Ctrl-C does, so that unfinished work is undone.

    They do so once, as a sender often sends one twice. Then the program exits with 128 plus the
    signal's number, as in shells; a further signal ends it at once. Under ``nohup``, SIGHUP stays
    ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pressed = signal.getsignal(signal.SIGINT)
        if len(received) == 1:
            if not callable(pressed):
                raise KeyboardInterrupt
            pressed(number, frame)

    handlers_before = {number: signal.getsignal(number) for number in _REQUESTS}
    for number, handler in handlers_before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, on_signal)
    try:
        yield
    except (KeyboardInterrupt, SystemExit, OSError):  # A closed terminal cannot be written to.
        if not received:
            raise
    finally:
        # In one step: between two handlers, the default would end the program.
        for number, handler in handlers_before.items():
            is_ours = bool(received) and handler is signal.SIG_DFL
            signal.signal(number, _leaving(128 + received[0]) if is_ours else handler)
    if received:
        sys.exit(128 + received[0])


@contextmanager
def left_at_once() -> Iterator[None]:
    """Within, Ctrl-C ends the program at once, as the command only looks and has nothing to undo.

    Freeing what a look at very many files has gathered would take seconds.
    """
    with _handling((signal.SIGINT,), lambda number, frame: _leave_saying(b"\ninterrupted\n")):
        yield


def _leave_saying(message: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, message)
    _leaving(130)(signal.SIGINT, None)


def at_once_from_here() -> None:
    """Make Ctrl-C end the program at once from here on, without further output or clean-up."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leaving(130))


def _leaving(status: int) -> Callable[[int, FrameType | None], None]:
    # It keeps references to what it needs: the interpreter clears modules' names at its end.
    def leave(
        number: int, frame: FrameType | None, end: Callable[[int], NoReturn] = os._exit
    ) -> None:
        with contextlib.suppress(Exception):
            restore_terminal()
        end(status)

    return leave
