"""Questions and orders of visitors to procs and host agents: holds, stacks, environment."""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message.header import Body, Message, Request

_Connection = tuple[tuple[str, int], tuple[str, int]]


class HoldsChanged(Message, tag=100):
    """From a proc to its host agent and to its root: the calls that stand in it now."""

    proc: Uid
    holds: tuple[HoldNote, ...]


class HeldCalls(msgspec.Struct):
    """The calls that stand, those whose process has ended, and the ``procs`` by uid."""

    holds: tuple[HoldNote, ...] = ()
    procs: dict[Uid, ProcAddress] = {}
    lost: tuple[LostHold, ...] = ()


class HoldsAsked(Request[HeldCalls], tag=101):
    """To a host agent or a client: which calls stand?"""


class HoldLine(Request[None], tag=102):
    """To a proc: a line for the debugger of a hold, typed by ``who``.

    ``is_quiet``: the line is not shown to other consoles.
    """

    hold: str
    line: str
    who: str
    is_quiet: bool = False


class HoldOutput(msgspec.Struct):
    """What a debugger wrote; it goes on from ``number``. ``cuts`` are the places in ``text`` where
    a line was typed; ``place`` is where the call stands."""

    number: int
    text: str
    is_waiting: bool
    is_over: bool
    place: str = ""
    cuts: tuple[int, ...] = ()


class HoldText(Request[HoldOutput], tag=103):
    """To a proc: what has the debugger of a hold written since the character ``number``?

    -1 stands for the last line that was typed. Answered at once where there is something, or where
    the hold ``is_waiting`` and was not ``was_waiting``, else when there is, or after ``seconds``.
    """

    hold: str
    number: int
    was_waiting: bool
    seconds: float


class HoldNames(Request[tuple[str, ...]], tag=104):
    """To a proc: what may the last word of ``text`` become in the frame of a hold?"""

    hold: str
    text: str


class ClocksStand(Message, tag=105):
    """From the root to its procs, and from them to theirs: a call stands, or none does any
    longer."""

    is_held: bool


class StacksAsked(Request[Body], tag=106):
    """To a proc: the Python stacks of its actors and threads, and what its actors do."""

    with_locals: bool


class Peeked(msgspec.Struct):
    """What was seen in the frame ``number``."""

    text: str
    number: int


class PeekLine(Request[Peeked], tag=107):
    """To a proc: a look at frame ``number`` of an actor that is running, as ``p x`` or ``args``."""

    actor: str
    number: int
    line: str


class StopAt(Request[dict[str, str]], tag=108):
    """To a proc: hold its actors, or the one of that name, at the next line of the user's code.

    ``method``: at the start of the next call instead.
    """

    actor: str
    who: str


class BreakAnswer(msgspec.Struct):
    """Of a proc: whether it stops there, and what stands in that line. Of a host: all ``breaks``
    of procs that start later."""

    text: str = ""
    is_armed: bool = False
    breaks: tuple[BreakPlace, ...] = ()


class BreakPlace(Request[BreakAnswer], tag=109):
    """To a proc: stop at a line from now on, where ``condition`` holds; or, ``is_gone``, no longer.

    ``text`` is what stands in that line, as far as it is known: it says which statement is
    meant where lines have moved. A proc that is none of ``ranks``, as people write them, leaves it
    be. To a host agent: for procs that start later; with ``number`` 0, only which there are.
    """

    number: int
    file: str
    line: int
    condition: str
    is_gone: bool
    ranks: str = "all"
    text: str = ""
    who: str = ""


class EnvAsked(Request[dict[str, str]], tag=110):
    """To a proc: the environment variables whose names match one of ``patterns``.

    ``at_start`` is that of the process's start, as C libraries saw it.
    Values of secret-looking names are hidden behind a digest with ``salt``. ``versions``: also what
    runs there.
    """

    patterns: tuple[str, ...]
    at_start: bool
    salt: str
    versions: bool


class EnvSet(Request[dict[str, str]], tag=111):
    """To a proc: set these variables, or, where ``None``, unset them.

    To a host agent: do so in procs that are started later, those of ``ranks``, or, where there are
    none, all. No ``values``: only say what was set so, by ``note`` of each name.
    """

    values: dict[str, str | None]
    who: str
    ranks: tuple[int, ...]


class DapOpened(Request[None], tag=112):
    """To a proc: have debugpy speak, through us, with an adapter that knows ``token``.

    ``parent`` is the pid of the session that this one is a child of, 0 for the first. Its bytes
    come as ``DapBytes`` of ``channel`` to ``client``, whose process is ``pid``: the session ends
    with it.
    """

    channel: str
    token: str
    parent: int
    client: ProcAddress
    pid: int


class DapBytes(Message, tag=113):
    """Bytes of an editor's session, in both directions; none is its end. Payload: the bytes."""

    channel: str


class AbortGroups(Request[tuple[_Connection, ...]], tag=114):
    """To a proc: end these TCP connections (both ends of each, the proc's own first) and its
    process groups, so that ranks waiting in a collective get an error.

    ``only_tells``: only answer which connections there are.
    """

    connections: tuple[_Connection, ...]
    only_tells: bool


class SourceAsked(Request[str], tag=115):
    """To the root: the ``text`` of a file that a proc's host does not have, as of a notebook's
    cell. Empty where the root does not know it either."""

    file: str
