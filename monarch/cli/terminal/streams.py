"""The command's standard streams, which may be closed, or full, when it starts.

If a command cannot print its results, that is an error of its own, which is reported once on
standard error: its work stays done.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

_WAYS_OUT = ("write", "flush")


def open_missing() -> None:
    """Open the standard streams that are closed, to ``/dev/null``.

    Otherwise the next file or socket that is opened would get such a stream's number, and its
    output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with contextlib.suppress(OSError):
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115  as they are


class WatchedStdout:
    """Watches the output that is written in the block.

    ``fault`` says why some of it could not be written; it is "" if all was.
    """

    def __init__(self) -> None:
        self.fault = ""
        self._out = sys.stdout

    def __enter__(self) -> WatchedStdout:
        with contextlib.suppress(AttributeError):  # A replacement of stdout may not allow it.
            for name in _WAYS_OUT:
                setattr(self._out, name, self._noting(getattr(self._out, name)))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AttributeError):
            for name in _WAYS_OUT:
                delattr(self._out, name)

    def _noting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            try:
                return work(*arguments)
            except BrokenPipeError:
                raise  # The reader has read enough.
            except OSError as error:
                self.fault = error.strerror or str(error)
                raise

        return noted

    def end(self) -> None:
        """Write all output, or drop it, so that neither a later print nor the interpreter's end
        fails again."""
        try:
            self._out.flush()
        except (OSError, ValueError):
            self._drop()
        if self.fault:
            self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(os.devnull, os.O_WRONLY)
            os.dup2(fd, self._out.fileno())
            os.close(fd)
            self._out.flush()
