"""Prints what procs print, on a thread of its own: a slow terminal must not stall messages.

In a notebook it appears in the cell that runs, and before the end of that cell.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import os
import queue
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from monarch.config import settings
from monarch.core.log_aggregation import LineSource
from monarch.core.log_bursts import Burst, without_actor
from monarch.core.log_lines import clean
from monarch.core.log_text import Style, aggregate_text, drop_text, line_text, run_text
from monarch.core.log_windows import Closed, LogWindows
from monarch.wire.address import Uid
from monarch.wire.message import Log, LogWindow

_PATIENCE_SECONDS = 1.0
_ATOMIC_BYTES = select.PIPE_BUF


class LogPrinter:
    """Prints each line to our stdout or stderr with ``[label] `` in front, or aggregates it.

    ``printed(host, num_bytes)`` is called when lines are printed or dropped. ``context`` is the
    context to print in, by which a notebook finds the running cell. ``tee`` also gets all lines,
    unchanged. For a run (``is_of_run``), similar lines that ranks print to stderr at about the same
    time are joined.
    """

    def __init__(self, printed: Callable[[Uid, int], None] = lambda host, num_bytes: None) -> None:
        self._printed = printed
        #: The windows of procs whose lines are aggregated.
        self._windows = LogWindows()
        #: The work of the printing thread; None ends it.
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: The printing thread; None before the first line, and after `close`.
        self._thread: threading.Thread | None = None
        #: Held while the thread is started.
        self._lock = threading.Lock()
        #: How much of the queue was done: this shows that printing goes on.
        self._num_done = 0
        self.context: contextvars.Context | None = None
        self.tee: Callable[[Log, bytes], None] | None = None
        self.is_of_run = False
        #: The similar lines of a run that wait for those of other ranks.
        self._burst = Burst()
        for file in (sys.stdout, sys.stderr):
            # Now, because the first line of a proc may come between the two steps of a print.
            if type(file) is io.TextIOWrapper and file.write_through:
                _write_whole_lines(file)

    def print(self, log: Log, lines: bytes) -> None:
        """Print whole lines of one proc. From any thread."""
        self._put(lambda: self._take(log, lines))

    def set_window(self, window: LogWindow) -> None:
        """Aggregate the later lines of the window's procs, or stop that. From any thread."""
        self._put(lambda: self._set_window(window))

    def forget(self, uid: Uid) -> None:
        """Note that this proc, or host, prints no more lines. From any thread."""
        if self._thread is not None:
            self._put(lambda: self._windows.forget(uid))

    def flush(self, timeout: float = _PATIENCE_SECONDS) -> bool:
        """Print all lines so far, also lines that are still being aggregated.

        Returns whether that was finished. Waits as long as printing goes on, but only ``timeout``
        seconds when it stalls.
        """
        thread = self._thread
        if thread is None:
            return True
        done = threading.Event()

        def close_windows() -> None:
            self._show(self._windows.flush())
            self._show_burst()
            done.set()

        self._queue.put(close_windows)
        num_done = -1
        while not done.wait(timeout):
            if self._num_done == num_done or not thread.is_alive():
                return False
            num_done = self._num_done
        return True

    def close(self) -> None:
        """Print the remaining lines, and end. Idempotent."""
        self.flush()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(_PATIENCE_SECONDS)

    def _put(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="monarch-logs", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        # From Python 3.12 on, a program that ends can start no threads.
                        job()
                        return
                    self._thread = thread
        self._queue.put(job)

    def _run(self) -> None:
        while True:
            deadlines = (self._windows.next_deadline, self._burst.deadline)
            deadline = min((moment for moment in deadlines if moment is not None), default=None)
            try:
                wait = None if deadline is None else max(0.0, deadline - time.time())
                job = self._queue.get(timeout=wait)
            except queue.Empty:
                self._show_due(time.time())
                continue
            if job is None:
                return
            job()
            self._num_done += 1
            if deadline is not None:
                self._show_due(time.time())

    def _take(self, log: Log, lines: bytes) -> None:
        if self.tee is not None:
            self.tee(log, lines)
        text = clean(lines.decode("utf-8", "replace"))
        if log.num_dropped:
            where = log.path and f"{log.path} on {log.host_name}"
            self._write(2, lambda style: drop_text(log.label, log.num_dropped, where, style))
        if self._windows.is_aggregated(log.uid, log.host):
            split = text[:-1].split("\n")
            self._windows.add(log.uid, log.host, log.stream, _source_of(log), split, time.time())
        elif self.is_of_run:
            self._take_of_run(_source_of(log), log.stream, text[:-1].split("\n"))
        else:
            label = _label_of(log.label)
            # The label names the actor already.
            shown = "\n".join(map(without_actor, text.split("\n"))) if log.label else text
            self._write(log.stream, lambda style: line_text(label, shown, style))
        self._printed(log.host, len(lines))

    def _take_of_run(self, source: LineSource, stream: int, lines: list[str]) -> None:
        if self._burst.wants(source, stream):
            self._burst.add(source, lines, time.time(), stream)
            return
        label = _label_of(f"{source.name} {source.rank}")
        shown = [without_actor(line) for line in lines]
        self._write(1, lambda style: run_text(label, shown, style))

    def _show_burst(self) -> None:
        for burst in self._burst.take():
            show = functools.partial(run_text, _label_of(burst.label), burst.text)
            self._write(burst.stream, show)

    def _show_due(self, now: float) -> None:
        self._show(self._windows.due(now))
        if self._burst.deadline is not None and self._burst.deadline <= now:
            self._show_burst()

    def _set_window(self, window: LogWindow) -> None:
        now = time.time()
        self._windows.assign(window.uids, window.group, window.window_seconds, now)
        self._show(self._windows.due(now))

    def _show(self, windows: list[Closed]) -> None:
        end = _clock(time.time())
        for window in windows:
            self._write(window.stream, functools.partial(_window_text, window, end))

    def _write(self, stream: int, make: Callable[[Style], str]) -> None:
        def write() -> None:
            # Looked up each time, as programs and notebooks replace them.
            file = sys.stdout if stream == 1 else sys.stderr
            _write_lines(
                file, make(Style(_has_colours(file), _width_of(file), is_of_run=self.is_of_run))
            )

        # The program may have closed its streams.
        with contextlib.suppress(Exception):
            if self.context is not None:
                self.context.run(write)
            else:
                write()


def _write_whole_lines(file: io.TextIOWrapper) -> None:
    """Make ``print`` write each of the program's own lines at once and in one piece.

    So they keep their order among the lines of procs.
    """
    if not file.line_buffering or file.write_through:
        file.reconfigure(line_buffering=True, write_through=False)


def _write_lines(file: TextIO, text: str) -> None:
    """Write whole lines, not mixed with lines that other threads print."""
    if type(file) is not io.TextIOWrapper:
        file.write(text)
        file.flush()
        return
    _write_whole_lines(file)
    # To the descriptor, as the file object has unfinished lines of the program. The kernel writes a
    # text of at most this size in one piece, to pipes too.
    fd, data = file.fileno(), text.encode(file.encoding, "backslashreplace")
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + _ATOMIC_BYTES) + 1 or start + _ATOMIC_BYTES
        try:
            start += os.write(fd, data[start:end])
        except BlockingIOError:
            select.select([], [fd], [])


def _source_of(log: Log) -> LineSource:
    name, _, rank = log.label.rpartition(" ")
    return LineSource(name.rstrip(), int(rank) if rank.isdigit() else 0)


def _label_of(label: str) -> str:
    """Return the label with or without the rank, by the setting ``prefix_with_rank``."""
    if settings().prefix_with_rank:
        return label
    return label.rpartition(" ")[0].rstrip() or label


def _has_colours(file: TextIO) -> bool:
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _width_of(file: TextIO) -> int | None:
    """Return the number of columns of the terminal that ``file`` writes to; None if it is no
    terminal."""
    return shutil.get_terminal_size().columns if file.isatty() else None


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def _window_text(window: Closed, end: str, style: Style) -> str:
    return aggregate_text(window.summary, _clock(window.opened_at), end, style)


def follow_cells(printer: LogPrinter, flush: Callable[[], object]) -> Callable[[], None]:
    """Print into the running notebook cell, and call ``flush`` at the end of each cell; returns a
    function that stops this.

    Outside a notebook it does nothing. It imports nothing: a program that has not imported IPython
    does not run in a notebook.
    """
    shell = _shell()
    if shell is None:
        return lambda: None

    def enter(*args: object) -> None:
        # The kernel knows a cell by the context that it runs in; a thread has none of its own.
        printer.context = contextvars.copy_context()

    def leave(*args: object) -> None:
        flush()

    def end() -> None:
        shell.events.unregister("pre_run_cell", enter)
        shell.events.unregister("post_run_cell", leave)

    enter()
    shell.events.register("pre_run_cell", enter)
    shell.events.register("post_run_cell", leave)
    return end


def _shell() -> Any:
    module = sys.modules.get("IPython")
    get_ipython = getattr(module, "get_ipython", None)
    return get_ipython() if callable(get_ipython) else None
