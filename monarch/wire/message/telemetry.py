"""Looking at what runs: the state of procs at this moment, their last events, profiles of them."""

from __future__ import annotations

from monarch.wire.address import Uid
from monarch.wire.message.header import Message


class LookAtProc(Message, tag=170):
    """Asks a proc for its state at this moment. Answered by ``Answer``; see
    ``runtime.observe.live_state``.

    ``flight``: also the last collectives that torch remembers, with the ``places`` in the code
    where they were begun, which takes longer.
    """

    port: int
    sender: Uid
    flight: bool = False
    places: bool = True


class LookAtHost(Message, tag=171):
    """To a host agent: the state of its machine, and of its procs, which it asks."""

    port: int
    sender: Uid
    flight: bool = False


class DrainProc(Message, tag=172):
    """Asks a proc for its last events. Answered with rows; see ``runtime.observe.drain``.

    ``takes``: the asking process keeps them, so the proc may forget them.
    """

    port: int
    sender: Uid
    takes: bool = False


class DrainHost(Message, tag=173):
    """To a host agent: its own rows and those of its procs, dead ones' as far as it has them."""

    port: int
    sender: Uid


class KeepRows(Message, tag=174):
    """To a host agent: fetch the rows of its procs every few seconds, and keep them so long that
    a dead proc's last ones are there. 0 seconds: no longer."""

    seconds: float
    port: int
    sender: Uid


class LastRows(Message, tag=177):
    """From a proc that ends to its host agent. Payload: its rows, as for ``DrainProc``."""

    proc: Uid


class AskClock(Message, tag=176):
    """To a host agent: its monotonic clock. Answered at once, for others to compare theirs."""

    port: int
    sender: Uid


class ProfileProc(Message, tag=175):
    """Run torch's profiler for so long. Answered with its trace, as JSON that zstd has packed."""

    seconds: float
    port: int
    sender: Uid


class HeldAsked(Message, tag=180):
    """Asks a process which of these procs it refers to, and whether its user's code runs there by
    itself. Answered with ``held``, uids, and ``busy``, words; see ``runtime.held``."""

    procs: tuple[Uid, ...]
    port: int
    sender: Uid


class PySpyAsked(Message, tag=178):
    """To a host agent: what py-spy sees of these procs, which need not be able to answer.

    Answered with ``dumps``, its JSON by uid, and with ``errors`` by uid; ``native``: with frames
    of C and C++.
    """

    procs: tuple[Uid, ...]
    native: bool
    port: int
    sender: Uid
