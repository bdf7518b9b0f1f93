"""Upstream's debug sessions: here each is the console's side of a held call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from monarch.actor.future import Future, make_future
from monarch.compat.debug_io import DebugIO
from monarch.core.rank_sets import RanksType, is_in
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.wire.hold import HoldNote
from monarch.wire.message import HoldLine, HoldOutput, HoldText, Request

A = TypeVar("A")

_LISTEN_SECONDS = 20.0


@dataclass
class DebugSessionInfo:
    """One row of `list`."""

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str | None
    lineno: int | None

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, DebugSessionInfo):
            return NotImplemented
        return (self.actor_name, self.rank) < (other.actor_name, other.rank)


class DebugSession:
    """The debugger of one rank. ``hold`` is the rank's held call.

    It is ``None`` for a session that a program has made itself.
    """

    def __init__(
        self,
        rank: int,
        coords: dict[str, int],
        hostname: str,
        actor_name: str,
        hold: HoldNote | None = None,
    ) -> None:
        self.rank = rank
        self.coords = coords
        self.hostname = hostname
        self.actor_name = actor_name
        self.hold = hold
        #: How much of the call's output has been shown.
        self._number = 0
        #: The same when the last line was typed.
        self._since_line = 0
        self._was_attached = False

    def get_info(self) -> DebugSessionInfo:
        """Return the row that `list` shows."""
        hold = self.hold
        function = lineno = None
        if hold is not None:
            stem = hold.file.rpartition("/")[2].removesuffix(".py")
            function, lineno = f"{stem}.{hold.function.rpartition('.')[2]}", hold.line
        return DebugSessionInfo(
            actor_name=self.actor_name,
            rank=self.rank,
            coords=self.coords,
            hostname=self.hostname,
            function=function,
            lineno=lineno,
        )

    async def attach(
        self, debug_io: DebugIO, line: str | None = None, suppress_output: bool = False
    ) -> None:
        """Talk to the call's debugger, until `detach` or the call's end.

        With a ``line``, send only that, and return when it has been run.
        """
        title = f"{self.actor_name} {self.rank}"

        async def say(text: str) -> None:
            if not suppress_output:
                await debug_io.output(text)

        await say(f"Attached to debug session for {title} ({self.hostname})\n")
        if self._was_attached:
            await say(f"<last pdb output for {title} follows>\n")
            self._number = self._since_line
        self._was_attached = True
        is_waiting = False
        while True:
            output = await self._text(is_waiting)
            for chunk in _chunks(output):
                await say(chunk)
            self._number, is_waiting = output.number, output.is_waiting
            if output.is_over:
                break
            if not is_waiting:
                continue
            if line is None and suppress_output:
                return
            typed = line if line is not None else await debug_io.input()
            if typed.strip() == "detach":
                break
            line = None
            self._since_line = self._number
            await self._type(typed)
            is_waiting = False
            if suppress_output and typed.strip() in ("c", "cont", "continue"):
                return
        await say(f"Detaching from debug session for {title} ({self.hostname})\n")
        await say(f"Detached from debug session for {title} ({self.hostname})\n")

    async def _text(self, was_waiting: bool) -> HoldOutput:
        hold = self._held()
        answer = await _asked(hold, HoldText(hold.id, self._number, was_waiting, _LISTEN_SECONDS))
        return answer.or_else(HoldOutput(self._number, "", is_waiting=False, is_over=True))

    async def _type(self, line: str) -> None:
        hold = self._held()
        await _asked(hold, HoldLine(hold.id, line, "", is_quiet=True))

    def _held(self) -> HoldNote:
        if self.hold is None:
            raise RuntimeError("no held call is behind this session")
        return self.hold


def _chunks(output: HoldOutput) -> list[str]:
    """Split the text into the pieces in which it was written."""
    bounds = [0, *output.cuts, len(output.text)]
    chunks = (output.text[start:end] for start, end in itertools.pairwise(bounds))
    return [chunk for chunk in chunks if chunk]


async def _asked(hold: HoldNote, request: Request[A]) -> Response[A]:
    """Send a request to the proc of a held call; return its response."""
    node = process.current().node
    answer: Future[Response[A]] = make_future(
        node.ask(node.address_of(hold.proc), request), lambda response: response
    )
    return await answer


class DebugSessions:
    """Debug sessions by actor and rank."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[int, DebugSession]] = {}

    def insert(self, session: DebugSession) -> None:
        """Add a session. Raises ``ValueError`` if its rank has one."""
        ranks = self._sessions.setdefault(session.actor_name, {})
        if session.rank in ranks:
            raise ValueError(
                f"Debug session for rank {session.rank} already exists for actor "
                f"{session.actor_name}"
            )
        ranks[session.rank] = session

    def remove(self, actor_name: str, rank: int) -> DebugSession:
        """Remove a session and return it. Raises ``ValueError`` if there is none."""
        session = self.get(actor_name, rank)
        ranks = self._sessions[actor_name]
        del ranks[rank]
        if not ranks:
            del self._sessions[actor_name]
        return session

    def get(self, actor_name: str, rank: int) -> DebugSession:
        """Return the session of a rank. Raises ``ValueError`` if there is none."""
        if actor_name not in self._sessions:
            raise ValueError(f"No debug sessions for actor {actor_name}")
        if rank not in self._sessions[actor_name]:
            raise ValueError(f"No debug session for rank {rank} for actor {actor_name}")
        return self._sessions[actor_name][rank]

    def iter(self, selection: tuple[str, RanksType | None] | None = None) -> Iterator[DebugSession]:
        """Yield all sessions, or those of one actor and of these ranks."""
        if selection is None:
            for ranks in list(self._sessions.values()):
                yield from list(ranks.values())
            return
        actor_name, wanted = selection
        if actor_name not in self._sessions:
            raise ValueError(f"No debug sessions for actor {actor_name}")
        ranks = self._sessions[actor_name]
        if isinstance(wanted, int):
            yield self.get(actor_name, wanted)
            return
        for _, session in sorted(ranks.items()):
            if wanted is None or _is_selected(wanted, session):
                yield session

    def info(self) -> list[DebugSessionInfo]:
        """Return the rows of all sessions, by actor and rank."""
        return sorted(session.get_info() for session in self.iter())

    def __len__(self) -> int:
        return sum(len(ranks) for ranks in self._sessions.values())

    def __contains__(self, item: tuple[str, int]) -> bool:
        actor_name, rank = item
        return rank in self._sessions.get(actor_name, {})


def _is_selected(wanted: RanksType, session: DebugSession) -> bool:
    if not isinstance(wanted, dict):
        return is_in(wanted, session.rank)
    return all(
        name in session.coords and is_in(choice, session.coords[name])
        for name, choice in wanted.items()
    )
