"""Questions and orders of visitors to procs and host agents: holds, stacks, environment."""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message.header import Body, Message, Request

_Connection = tuple[tuple[str, int], tuple[str, int]]


class HoldsChanged(Message, tag=100):
    """From a proc to its host agent and to its root: the calls that are held in it now."""

    proc: Uid
    holds: tuple[HoldNote, ...]


class HeldCalls(msgspec.Struct):
    """The held calls, the held calls whose process has ended, and the ``procs`` by uid."""

    holds: tuple[HoldNote, ...] = ()
    procs: dict[Uid, ProcAddress] = {}
    lost: tuple[LostHold, ...] = ()


class HoldsAsked(Request[HeldCalls], tag=101):
    """To a host agent or a client: which calls are held?"""


class HoldLine(Request[None], tag=102):
    """To a proc: a line for the debugger of a hold, typed by the user ``who``.

    ``is_quiet``: other consoles do not show the line.
    """

    hold: str
    line: str
    who: str
    is_quiet: bool = False


class HoldOutput(msgspec.Struct):
    """The output of a debugger: ``number`` counts all characters so far, up to the end of ``text``.
    ``cuts`` are the positions in ``text`` at which a line was typed; ``place`` is where the call is
    held."""

    number: int
    text: str
    is_waiting: bool
    is_over: bool
    place: str = ""
    cuts: tuple[int, ...] = ()


class HoldText(Request[HoldOutput], tag=103):
    """To a proc: what has the debugger of a hold written since the character ``number``?

    -1 means since the last line that was typed. Answered at once if there is output, or if the
    debugger waits for a line and ``was_waiting`` is false, or the other way round. Otherwise it is
    answered when one of these happens, or after ``seconds``.
    """

    hold: str
    number: int
    was_waiting: bool
    seconds: float


class HoldNames(Request[tuple[str, ...]], tag=104):
    """To a proc: the completions of the last word of ``text`` in the frame of a hold."""

    hold: str
    text: str


class ClocksStand(Message, tag=105):
    """From the root to its procs, and from them to theirs: time limits are paused while a call is
    held.

    ``is_held`` says whether one is held now.
    """

    is_held: bool


class StacksAsked(Request[Body], tag=106):
    """To a proc: ask for the Python stacks of its actors and threads, and what its actors do."""

    with_locals: bool


class Peeked(msgspec.Struct):
    """The answer to ``PeekLine``: the text to show, and the ``number`` of the frame that was looked
    at.
    """

    text: str
    number: int


class PeekLine(Request[Peeked], tag=107):
    """To a proc: evaluate a line such as ``p x`` or ``args`` in frame ``number`` of a running
    actor."""

    actor: str
    number: int
    line: str


class StopAt(Request[dict[str, str]], tag=108):
    """To a proc: hold its actors, or the actor of that name, at the next line of the user's code.

    With ``method``: at the start of the next call instead.
    """

    actor: str
    who: str


class BreakAnswer(msgspec.Struct):
    """The answer to ``BreakPlace``.

    From a proc: whether it will stop at the line, and the ``text`` of the line. From a host: all
    ``breaks`` for procs that start later.
    """

    text: str = ""
    is_armed: bool = False
    breaks: tuple[BreakPlace, ...] = ()


class BreakPlace(Request[BreakAnswer], tag=109):
    """To a proc: stop at a line from now on, if ``condition`` is true; with ``is_gone``, no longer.

    ``text`` is the text of that line, as far as it is known: it identifies the statement if lines
    have moved. A proc whose rank is not in ``ranks`` ignores the message. To a host agent: keep the
    breakpoint for procs that start later; with ``number`` 0, only answer which ones it keeps.
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

    ``at_start``: the environment at the process's start, as C libraries see it. Values with
    secret-looking names are replaced by a digest with ``salt``. ``versions``: also the versions of
    the software there.
    """

    patterns: tuple[str, ...]
    at_start: bool
    salt: str
    versions: bool


class EnvSet(Request[dict[str, str]], tag=111):
    """To a proc: set these variables, or unset those whose value is ``None``.

    To a host agent: do so in procs that start later, and that have one of ``ranks``, or any rank if
    ``ranks`` is empty. It answers with a text for each variable that was set in this way: who set
    it, and when. So without ``values`` it only reports.
    """

    values: dict[str, str | None]
    who: str
    ranks: tuple[int, ...]


class DapOpened(Request[None], tag=112):
    """To a proc: connect debugpy, through our messages, to an adapter that knows ``token``.

    ``parent`` is the pid of the parent debug session, 0 for the first. The bytes are the stream
    ``uid`` of ``client``, whose process is ``pid``: the session ends with that process.
    """

    uid: Uid
    token: str
    parent: int
    client: ProcAddress
    pid: int


class AbortGroups(Request[tuple[_Connection, ...]], tag=114):
    """To a proc: end these TCP connections (both ends of each, the proc's own first) and its
    process groups, so that ranks waiting in a collective get an error.

    ``only_tells``: only answer with the list of connections.
    """

    connections: tuple[_Connection, ...]
    only_tells: bool


class SourceAsked(Request[str], tag=115):
    """To the root: return the text of ``file``, which a proc's host does not have.

    The file may be a notebook's cell. The answer is empty if the root does not have it either.
    """

    file: str
