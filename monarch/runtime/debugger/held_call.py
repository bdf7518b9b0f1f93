"""A held call, from its first stop until it ends: its debugger, and its reports."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

import msgspec

from monarch.runtime.debugger.held_pdb import HeldPdb
from monarch.runtime.debugger.held_text import HeldText
from monarch.wire.hold import HoldNote


class HeldCall:
    """Holds a call on its own thread.

    ``changed`` is called, on any thread, whenever ``about``, the call's description, has changed.
    ``on_text`` is called when there is new output. ``learn`` is as in ``HeldPdb``. ``is_loose``:
    the call is not an actor's, so nothing reports its end.
    """

    def __init__(
        self,
        about: HoldNote,
        changed: Callable[[], None],
        on_text: Callable[[], None],
        learn: Callable[[str], bool],
        is_loose: bool = False,
    ) -> None:
        self.about = about
        self.text = HeldText(self._waits, on_text)
        self.pdb = HeldPdb(self.text, self._stops, learn)
        self.is_over = False
        self.is_loose = is_loose
        self.last_touch = time.monotonic()
        self._changed = changed

    def set_trace(self, frame: FrameType) -> None:
        """Stop at the next line of ``frame``."""
        self._because("breakpoint()")
        self.pdb.set_trace(frame)

    def stand_here(self, frame: FrameType, reason: str) -> None:
        """Stop at the line where ``frame`` is."""
        self._because(reason)
        self.pdb.stand_here(frame)

    def stand_next(self, reason: str) -> None:
        """Stop at the next line of the user's code."""
        self._because(reason)
        self.pdb.stand_next()

    def stand_at_error(self, error: BaseException) -> bool:
        """Stop at the place where ``error`` was raised; return whether the call must be run
        again."""
        lines = traceback.format_exception_only(type(error), error)
        text = lines[-1].strip() if lines else type(error).__name__
        self.about = msgspec.structs.replace(self.about, reason="error", error=text)
        self.text.write(f"{text}\n")
        return self.pdb.stand_at_error(error)

    def type(self, line: str, who: str = "") -> None:
        """Pass a line to the debugger. ``who`` is the person who typed it. From any thread."""
        self.last_touch = time.monotonic()
        self.text.type(line, who)

    def end(self, frame: FrameType | None) -> None:
        """End the hold, because the call has ended."""
        self.pdb.end(frame)
        self.is_over = True
        self.text.close()

    def _because(self, reason: str) -> None:
        self.about = msgspec.structs.replace(self.about, reason=reason)

    def _stops(self, frame: FrameType | None) -> None:
        if frame is not None:
            self.about = msgspec.structs.replace(
                self.about,
                file=frame.f_code.co_filename,
                function=_function(frame),
                line=frame.f_lineno,
            )

    def _waits(self, is_waiting: bool) -> None:
        self.last_touch = time.monotonic()
        self.about = msgspec.structs.replace(self.about, is_waiting=is_waiting)
        self._changed()


def _function(frame: FrameType) -> str:
    """Return the name of a frame's function with its class: ``Trainer.step``.

    Before Python 3.11, code objects do not have the class, so it is taken from ``self``.
    """
    code = frame.f_code
    if sys.version_info >= (3, 11):
        return code.co_qualname
    owner = frame.f_locals.get("self") if code.co_varnames[:1] == ("self",) else None
    return code.co_name if owner is None else f"{type(owner).__qualname__}.{code.co_name}"
