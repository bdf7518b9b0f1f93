"""A progress bar for pushes that take longer than a person waits without asking."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable

from monarch.cli.terminal.terminal import Terminal
from monarch_sync.progress import Progress
from monarch_sync.words import byte_size, clipped, counted, printable, took

_PATIENCE_SECONDS = 0.5
_EVERY_SECONDS = 0.1
_FIRST_LINE_SECONDS = 0.3
_LINE_EVERY_SECONDS = 4.0
_LINE_WIDTH = 200
_MANY = 1000

_DOING = {
    "": "asking the hosts",
    "look": "looking at the workspace",
    "compare": "comparing with what the hosts have",
    "packages": "having pip find the packages that hosts lack",
    "stage": "asking hosts what they lack",
    "prepare": "trying the new code",
    "wait": "waiting for actors to end what they are in",
    "commit": "switching",
}

Source = Callable[[], tuple[Progress, int]]
"""How far a push is, and how many bytes have arrived."""


class _Indicator:
    """Shows the progress of a push, on a thread of its own, until it is closed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monarch-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Show nothing any more."""
        self._is_over.set()
        self._thread.join()


class ProgressBar(_Indicator):
    """Shows a bar after half a second, or ``at_once``."""

    def __init__(self, terminal: Terminal, source: Source, *, at_once: bool) -> None:
        self._terminal = terminal
        self._patience = 0.0 if at_once else _PATIENCE_SECONDS
        super().__init__(source)

    def _run(self) -> None:
        started = time.monotonic()
        wait = self._patience
        first: tuple[float, int] | None = None
        while not self._is_over.wait(wait):
            wait = _EVERY_SECONDS
            progress, arrived = self._source()
            now = time.monotonic()
            if arrived and first is None:
                first = now, arrived
            seconds, num_bytes = (now - first[0], arrived - first[1]) if first else (0.0, 0)
            speed = num_bytes / seconds if seconds > 0.5 else 0.0
            width = (self._terminal.width or 80) - 1
            text = bar_line(
                progress, arrived, now - started, speed, width, ascii_only=self._terminal.ascii_only
            )
            self._terminal.change(text)

    def close(self) -> None:
        """Remove the bar."""
        super().close()
        self._terminal.change("")


def bar_line(
    progress: Progress,
    arrived: int,
    seconds: float,
    speed: float,
    width: int,
    *,
    ascii_only: bool = False,
) -> str:
    """Return ``sending  [#####-----]  120 of 450 MB  3.1 s left``, in ``width`` columns at most.

    ``arrived`` bytes in ``seconds``; ``speed`` is the recent rate in bytes a second, 0 if unknown.
    """
    mark = "..." if ascii_only else "…"
    total = progress.bytes_to_send
    if progress.step == "scan":
        return clipped(f"{scan_text(progress)}  {took(seconds)}", width, mark)
    if progress.step != "stage" or not total:
        doing = _DOING.get(progress.step, "working")
        return clipped(f"{doing}  {took(seconds)}", width, mark)
    share = min(1.0, arrived / total)
    time_left = f"  {_left((total - arrived) / speed)} left" if speed and arrived < total else ""
    amount = f"{byte_size(min(arrived, total))} of {byte_size(total)}"
    tail = f"  {amount}{time_left}"
    room = min(30, width - len("sending  []") - len(tail))
    if room < 4:
        return clipped(f"sending{tail}", width, mark)
    num_full = int(room * share)
    full_mark, empty_mark = ("#", "-") if ascii_only else ("█", "░")
    return f"sending  [{full_mark * num_full}{empty_mark * (room - num_full)}]{tail}"


def scan_text(progress: Progress) -> str:
    """Return the progress of a scan: files found, bytes read, and a file that takes long."""
    path, read = progress.path, byte_size(progress.bytes_read)
    text = f"reading  {counted(progress.num_files, 'file')}, {read}"
    if path:
        amount = f"{byte_size(progress.path_bytes_read)} of {byte_size(progress.path_bytes)}"
        return f"{text}; {printable(path.rpartition('/')[2])}: {amount}"
    if not progress.num_files and progress.num_listed:
        return f"looking  {counted(progress.num_listed, 'path')}"
    return text


class ProgressLines(_Indicator):
    """Writes progress on standard error, where there is no bar.

    The first line comes within a second, then one every few seconds.
    """

    def _run(self) -> None:
        started, wait, is_at_it = time.monotonic(), _FIRST_LINE_SECONDS, False
        while not self._is_over.wait(wait):
            wait = _LINE_EVERY_SECONDS
            progress, arrived = self._source()
            is_many = progress.num_listed >= _MANY
            if progress.step != "scan" and not (progress.step == "compare" and is_many):
                # The output reports in lines of its own what a push waits for.
                wait, is_at_it = _FIRST_LINE_SECONDS, False
                continue
            if not is_at_it:  # It may be over in no time.
                wait, is_at_it = _FIRST_LINE_SECONDS, True
                continue
            seconds = time.monotonic() - started
            line = bar_line(progress, arrived, seconds, 0.0, _LINE_WIDTH, ascii_only=True)
            with contextlib.suppress(OSError, ValueError):  # Nobody reads it.
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()


def _left(seconds: float) -> str:
    return took(seconds) if seconds > 99 else f"{max(1, round(seconds))} s"
