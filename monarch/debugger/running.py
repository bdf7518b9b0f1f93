"""What a console asks of ranks that run: where they are, and to stop."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.debugger.command_line import Typed
from monarch.debugger.screen import Screen
from monarch.debugger.visit import Visit
from monarch.wire.hold import HoldNote


class RunningRanks:
    """The commands for all procs, whether something stands there or not."""

    def __init__(self, visit: Visit, screen: Screen) -> None:
        self._visit = visit
        self._screen = screen

    def where(self, typed: Typed) -> None: ...
    def stacks(self, typed: Typed) -> None: ...
    def stop(self, typed: Typed) -> None: ...
    def break_at(self, typed: Typed) -> None: ...

    def tell_missing(self, missing: Sequence[HoldNote]) -> None:
        """These have not stopped again."""
        for hold in missing:
            self._screen.write(f"{hold.actor} rank {hold.rank} has not stopped again yet\n")
