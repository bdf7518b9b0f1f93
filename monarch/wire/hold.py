"""Holds: calls that are stopped at a breakpoint or an error, as other processes see them."""

from __future__ import annotations

import msgspec

from monarch.wire.address import Uid


class HoldNote(msgspec.Struct, frozen=True):
    """One held call.

    ``actor`` is the name of the actor's mesh, and ``rank`` its rank there, with ``labels`` and
    ``sizes`` of the mesh; ``mesh`` is the uid of the procs' mesh, ``proc`` the uid of the proc.
    ``reason`` is ``breakpoint()``, ``train.py:42``, ``error`` or ``stopped by anna``. ``function``
    and ``line`` are those of the innermost frame when it last stopped. ``is_waiting``: the debugger
    waits for a line; otherwise the call runs on, and may stop again. ``since`` is in seconds since
    the epoch.
    """

    id: str
    actor: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    mesh: Uid
    proc: Uid
    host: str
    pid: int
    method: str
    reason: str
    file: str
    function: str
    line: int
    since: float
    is_waiting: bool = True
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
