"""Makes a program that met an unhandled fault end with status 1, after its exit handlers.

A ``KeyboardInterrupt`` that is not caught would end it by SIGINT, which shells see as 130. So a
hook that shows the uncaught exception has the interpreter exit with 1; if the program caught the
exception and went on, the status is set at the very end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import TracebackType

_must_fail = False
_is_leaving = False


class EndedByFault(KeyboardInterrupt):
    """A fault ends the program with status 1; this is raised in its main thread.

    Programs that save their work when interrupted catch it too. Its traceback is not shown: the
    fault has been reported.
    """


def fail_at_exit() -> None:
    """Have this program end with status 1 in any case."""
    global _must_fail
    if _must_fail:
        return
    _must_fail = True
    show = sys.excepthook

    def show_and_leave(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        global _is_leaving
        if not isinstance(error, EndedByFault):
            show(kind, error, trace)
        # Only for the main thread's: the others' exceptions go to threading.excepthook.
        _is_leaving = True
        raise SystemExit(1)

    sys.excepthook = show_and_leave


def _set_status() -> None:
    if not _must_fail or _is_leaving:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)


# As early as can be: exit handlers run in the reverse order of their registration.
atexit.register(_set_status)
