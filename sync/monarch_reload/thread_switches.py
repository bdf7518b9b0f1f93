"""Stretches of work in which no other thread of the process runs.

A thread that keeps working gives the interpreter to another one only after the switch interval.
Before that, other threads run only while this thread waits for something.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType

import msgspec

_UNDISTURBED_SECONDS = 0.05
_FRESH_SECONDS = 0.01
_SHORT_SECONDS = 0.001


_lock = threading.Lock()
_num_lengthened = 0
_usual_seconds = 0.0  # the switch interval of the process, while it is lengthened


@contextlib.contextmanager
def longer_turns() -> Iterator[None]:
    """Keep other threads waiting during this block, for at most ``_UNDISTURBED_SECONDS``. Several
    threads may use this block at the same time."""
    global _num_lengthened, _usual_seconds
    with _lock:
        if _num_lengthened == 0:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(max(_usual_seconds, _UNDISTURBED_SECONDS))
        _num_lengthened += 1
    try:
        yield
    finally:
        with _lock:
            _num_lengthened -= 1
            if _num_lengthened == 0:
                sys.setswitchinterval(_usual_seconds)


class Moment(msgspec.Struct, frozen=True):
    """A record by which a thread can tell later whether other threads have run since this
    moment."""

    when: float
    num_switches: int  # of the thread that asks
    worked: Mapping[int, int]  # processor time in nanoseconds, by native thread id
    places: Mapping[int, tuple[FrameType, int]]  # frame and instruction, by thread id


class Turns:
    """Tells a thread whether other threads may have run during a stretch of its work."""

    def __init__(self) -> None:
        self._began = -_FRESH_SECONDS

    def freshen(self) -> bool:
        """Let other threads run now, unless they could run within the last ``_FRESH_SECONDS``.
        Return whether they may have run during this call.
        """
        if time.perf_counter() - self._began < _FRESH_SECONDS:
            return False
        time.sleep(0)
        self._began = time.perf_counter()
        return True

    def moment(self) -> Moment:
        return Moment(time.perf_counter(), _num_switches(), _worked(), _places())

    def undisturbed_since(self, begin: Moment, seconds: float) -> bool:
        """Return whether no other Python thread has run since ``begin``. It is False also if that
        is not certain.

        ``seconds``: the duration of code in between during which other threads were free to run.
        """
        # A virtual machine that lost its processor for a while counts no switch, but the switch
        # interval may be over.
        is_fresh = time.perf_counter() - begin.when < _FRESH_SECONDS
        has_kept_on = is_fresh and _num_switches() == begin.num_switches
        is_likely = (has_kept_on and seconds < _SHORT_SECONDS) or (
            _CAN_ASK and _worked() == begin.worked
        )
        # A thread on another processor runs without a switch of ours whenever we release the
        # interpreter, and the system may report its processor time a moment later.
        return is_likely and _places() == begin.places


_CAN_ASK = sys.platform == "linux"


def _num_switches() -> int:
    """Return how often this thread gave up its processor, for any reason; 0 if the system does not
    tell."""
    if not _CAN_ASK:
        return 0
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw


def _places() -> dict[int, tuple[FrameType, int]]:
    """Return the frame and the instruction at which each other thread is, by thread id.

    To compare with a later call: a thread that has run meanwhile is at another instruction or in
    another frame. The frames are kept alive, so that a new frame cannot have the id of an old one.
    """
    me = threading.get_ident()
    frames = sys._current_frames().items()
    return {thread: (frame, frame.f_lasti) for thread, frame in frames if thread != me}


def _worked() -> dict[int, int]:
    """Return the processor time of each other thread so far, in nanoseconds, by native thread
    id."""
    me, nanoseconds = threading.get_native_id(), {}
    for thread in threading.enumerate() if _CAN_ASK else ():
        number = thread.native_id
        if number is not None and number != me:
            # The clock of a thread, by Linux's numbering; it refuses threads that have ended.
            with contextlib.suppress(OSError):
                nanoseconds[number] = time.clock_gettime_ns((~number << 3) | 6)
    return nanoseconds
