"""Looking at what runs: the state of procs at this moment, their last events, profiles of them."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote
from monarch.wire.message.header import Body, Message, Request
from monarch.wire.message.hosts import HostState


class LookAtProc(Request[Body], tag=170):
    """Asks a proc for its state at this moment. Answered by ``Answer``; see
    ``runtime.observe.live_state``.

    ``flight``: also the last collectives that torch remembers, with the ``places`` in the code
    where they were begun, which takes longer.
    """

    flight: bool = False
    places: bool = True


class HostLook(msgspec.Struct):
    """A host at this moment. ``seen`` is by proc: what the host sees of its process, and what the
    proc says of itself, which is empty where it does not answer."""

    state: HostState
    now: int
    epoch: int
    holds: tuple[HoldNote, ...]
    seen: dict[Uid, tuple[dict[str, Any], dict[str, Any]]]
    machine: dict[str, Any]


class LookAtHost(Request[HostLook], tag=171):
    """To a host agent: the state of its machine, and of its procs, which it asks."""

    flight: bool = False


class DrainProc(Request[bytes], tag=172):
    """Asks a proc for its last events. Answered with rows; see ``runtime.observe.drain``.

    ``takes``: the asking process keeps them, so the proc may forget them.
    """

    takes: bool = False


class HostRows(msgspec.Struct):
    """``rows`` by proc, packed; ``about`` are rows on the procs. ``silent``: who gave none."""

    host: str
    now: int
    epoch: int
    about: list[dict[str, Any]]
    rows: list[tuple[Uid, bytes]]
    silent: list[str]
    client: ProcAddress | None = None


class DrainHost(Request[HostRows], tag=173):
    """To a host agent: its own rows and those of its procs, dead ones' as far as it has them."""


class KeepRows(Request[None], tag=174):
    """To a host agent: fetch the rows of its procs every few seconds, and keep them so long that
    a dead proc's last ones are there. 0 seconds: no longer."""

    seconds: float


class LastRows(Message, tag=177):
    """From a proc that ends to its host agent. Payload: its rows, as for ``DrainProc``."""

    proc: Uid


class AskClock(Request[int], tag=176):
    """To a host agent: its monotonic clock. Answered at once, for others to compare theirs."""


class ProfileProc(Request[bytes], tag=175):
    """Run torch's profiler for so long. Answered with its trace, as JSON that zstd has packed."""

    seconds: float


class HeldProcs(msgspec.Struct):
    """The procs that a process refers to, and what goes on there besides calls, in
    words."""

    held: tuple[Uid, ...]
    busy: str


class HeldAsked(Request[HeldProcs], tag=180):
    """Asks a process which of these procs it refers to, and whether its user's code runs there by
    itself; see ``runtime.held``."""

    procs: tuple[Uid, ...]


class PySpyDumps(msgspec.Struct):
    """py-spy's JSON by uid, and by uid why there is none."""

    dumps: dict[Uid, str]
    errors: dict[Uid, str]


class PySpyAsked(Request[PySpyDumps], tag=178):
    """To a host agent: what py-spy sees of these procs, which need not be able to answer.

    ``native``: with frames of C and C++.
    """

    procs: tuple[Uid, ...]
    native: bool
