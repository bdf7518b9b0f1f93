"""Holds: calls that are stopped at a breakpoint or an error, as other processes see them."""

from __future__ import annotations

import msgspec

from monarch.wire.address import Uid


class HoldNote(msgspec.Struct, frozen=True):
    """One held call."""

    id: str
    #: The name of the actor's mesh, the actor's rank in it, and the mesh's dimensions.
    actor: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    #: The uids of the mesh of procs, and of the proc.
    mesh: Uid
    proc: Uid
    host: str
    pid: int
    method: str
    #: Why it is held: ``breakpoint()``, ``train.py:42``, ``error`` or ``stopped by anna``.
    reason: str
    #: The innermost frame when the call last stopped.
    file: str
    function: str
    line: int
    #: In seconds since the epoch.
    since: float
    #: Whether the debugger waits for a line; otherwise the call runs, and may stop again.
    is_waiting: bool = True
    #: The error at which the call is held; "" for other reasons.
    error: str = ""
    generation: int = 0

    @property
    def place(self) -> str:
        """Return where the call is held, in short form: ``train.py:42``."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class LostHold(msgspec.Struct, frozen=True):
    """A call whose process ended while it was held; ``when`` is in seconds since the epoch."""

    hold: HoldNote
    reason: str
    when: float
