"""Ends the program from any thread, through its main thread, so that exit handlers run.

It sends a signal of our own, whose handler raises: only a signal wakes a main thread that waits for
a lock. SIGINT would not do: it is Ctrl-C, shows a traceback, and is ignored in programs that a
script, a batch system or a CI runner starts in the background.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from types import FrameType

from monarch.net.put_off import handler_of
from monarch.runtime.ends.exit_status import EndedByFault
from monarch.runtime.uninterrupted import is_uninterrupted

_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 11
_RETRY_SECONDS = (0.01, 0.1, 1.0)
_raised = threading.Event()


def prepare_to_end() -> None:
    """Install a signal handler that ends the program; see ``end_program``.

    Does nothing outside of the main thread, or if the signal already has a handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
        signal.signal(_SIGNAL, _end)


def _end(number: int, frame: FrameType | None) -> None:
    if is_uninterrupted():
        return  # We are asked again.
    if not _raised.is_set():
        _raised.set()
        raise EndedByFault


def end_program() -> None:
    """Make the main thread raise ``EndedByFault``, which ends the program.

    In a notebook, or if the program has its own handler of the signal, Ctrl-C is simulated instead.
    """
    main = threading.main_thread()
    if not main.is_alive() or main.ident is None:
        return
    if _is_notebook() or handler_of(_SIGNAL) is not _end:
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            signal.pthread_kill(main.ident, signal.SIGINT)
        elif not _is_notebook():
            os._exit(1)
        return
    _raised.clear()
    for seconds in itertools.chain(_RETRY_SECONDS, itertools.repeat(_RETRY_SECONDS[-1])):
        if not main.is_alive():
            return
        signal.pthread_kill(main.ident, _SIGNAL)
        if _raised.wait(seconds):
            return


def _is_notebook() -> bool:
    module = sys.modules.get("IPython")
    get_ipython = getattr(module, "get_ipython", None)
    return callable(get_ipython) and get_ipython() is not None
