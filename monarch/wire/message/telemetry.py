"""Telemetry: the present state of procs, their last events, and profiles of them."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote
from monarch.wire.message.header import Body, Message, Request
from monarch.wire.message.hosts import HostState


class LookAtProc(Request[Body], tag=170):
    """Ask a proc for its present state. Answered by ``Answer``; see ``runtime.observe.live_state``.

    ``flight``: also the last collectives that torch remembers, with the ``places`` in the code
    where they began, which takes longer.
    """

    flight: bool = False
    places: bool = True


class HostLook(msgspec.Struct):
    """The present state of a host. ``seen`` has for each proc what the host sees of its process,
    and what the proc reports of itself, which is empty if the proc does not answer."""

    state: HostState
    now: int
    epoch: int
    holds: tuple[HoldNote, ...]
    seen: dict[Uid, tuple[dict[str, Any], dict[str, Any]]]
    machine: dict[str, Any]


class LookAtHost(Request[HostLook], tag=171):
    """To a host agent: the state of its machine and of its procs, which it asks."""

    flight: bool = False


class DrainProc(Request[bytes], tag=172):
    """Ask a proc for its last events. Answered with rows; see ``runtime.observe.drain``.

    ``takes``: the asking process keeps them, so the proc may drop them.
    """

    takes: bool = False


class HostRows(msgspec.Struct):
    """``rows`` by proc, packed; ``about`` are rows about the procs. ``silent``: procs that gave no
    rows."""

    host: str
    now: int
    epoch: int
    about: list[dict[str, Any]]
    rows: list[tuple[Uid, bytes]]
    silent: list[str]
    client: ProcAddress | None = None


class DrainHost(Request[HostRows], tag=173):
    """To a host agent: its own rows and those of its procs, also of dead procs if it has them."""


class KeepRows(Request[None], tag=174):
    """To a host agent: fetch the rows of its procs regularly, and keep them for ``seconds``.

    So the last rows of a proc are known after its death. 0: stop fetching, and drop the kept rows.
    """

    seconds: float


class LastRows(Message, tag=177):
    """From an ending proc to its host agent. Payload: its rows, as for ``DrainProc``."""

    proc: Uid


class AskClock(Request[int], tag=176):
    """To a host agent: ask for its monotonic clock. Answered at once, so that clocks can be
    compared."""


class ProfileProc(Request[bytes], tag=175):
    """Run torch's profiler for ``seconds``. Answered with its trace, as JSON compressed by zstd."""

    seconds: float


class HeldProcs(msgspec.Struct):
    """The procs that a process refers to, and what runs in it other than calls, in words."""

    held: tuple[Uid, ...]
    busy: str


class HeldAsked(Request[HeldProcs], tag=180):
    """Ask a process which of ``procs`` it refers to, and whether the user's code runs in it outside
    of calls; see ``runtime.held``.
    """

    procs: tuple[Uid, ...]


class PySpyDumps(msgspec.Struct):
    """The JSON of py-spy by uid; for procs without any, the reason by uid."""

    dumps: dict[Uid, str]
    errors: dict[Uid, str]


class PySpyAsked(Request[PySpyDumps], tag=178):
    """To a host agent: run py-spy on these procs, which need not be able to answer themselves.

    ``native``: with frames of C and C++.
    """

    procs: tuple[Uid, ...]
    native: bool
