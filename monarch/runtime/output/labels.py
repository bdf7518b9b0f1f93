"""In a proc: labels in the output, so that each line is shown under the actor that printed it.

Output of Python code belongs to the running actor, or to the actor whose code has started the
thread. Output that others write to the descriptors (libraries in C, children) belongs to the last
label.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from monarch.runtime.context import running
from monarch.runtime.output.log_stream import label_mark
from monarch.wire.address import Uid


def label_of(name: str, rank: int, num_ranks: int) -> str:
    """Return a label such as ``trainer  3``; labels of one mesh have the same width."""
    return f"{name} {rank:>{len(str(num_ranks - 1))}}"


class Labels:
    """Writes a mark into the output when another actor begins to print. ``fds`` are stdout and
    stderr."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds
        self._last: dict[int, str] = {}
        self._labels: dict[Uid, str] = {}
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Label the output from now on."""
        out, err = self._fds
        sys.stdout, sys.stderr = self._opened(out, sys.stdout), self._opened(err, sys.stderr)
        _remember_who_starts_threads()

    def _opened(self, fd: int, stream: Any) -> io.TextIOWrapper:
        stream.flush()
        raw = _Labelled(self, fd, stream.fileno())
        return io.TextIOWrapper(
            io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
        )

    def mark(self, label: str) -> None:
        """Label later output with ``label``, until another actor prints."""
        with self._lock:
            for fd in self._fds:
                self._mark(fd, label)

    def expect(self, uid: Uid, label: str) -> None:
        """Note that an actor of this uid is made here, with its label."""
        self._labels[uid] = label

    def _mark(self, fd: int, label: str) -> None:
        if self._last.get(fd) == label:
            return
        self._last[fd] = label
        try:
            os.write(fd, label_mark(label))
        except OSError:
            pass  # The reader is gone.

    def write(self, fd: int, to: int, data: Any) -> int:
        """Write ``data`` to the descriptor ``to``; return how many bytes were written.

        If another actor wrote to ``fd`` last, a mark with the label comes first.
        """
        writer = running.get() or vars(threading.current_thread()).get(_STARTED_BY)
        label = self._labels.get(writer.record.uid) if writer is not None else None
        if label is None or self._last.get(fd) == label:
            return os.write(to, data)
        with self._lock:
            self._mark(fd, label)
            return os.write(to, data)


class _Labelled(io.RawIOBase):
    """A file object for stdout or stderr, which adds labels; actors may have redirected the
    descriptor to a file."""

    def __init__(self, labels: Labels, fd: int, number: int) -> None:
        self._labels = labels
        self._fd = fd
        self._number = number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return False

    def write(self, data: Any) -> int:
        return self._labels.write(self._fd, self._number, data)


_STARTED_BY = "_monarch_started_by"


def _remember_who_starts_threads() -> None:
    start = threading.Thread.start

    def start_noted(self: threading.Thread) -> None:
        by = running.get() or vars(threading.current_thread()).get(_STARTED_BY)
        if by is not None:
            vars(self)[_STARTED_BY] = by
        start(self)

    threading.Thread.start = start_noted  # type: ignore[method-assign]
