"""Upstream's debug controller: an actor in the client, through which programs see held calls.

The calls are held in their procs, whether there is a controller or not; `monarch debug` needs none.
The controller opens a port only if ``MONARCH_DEBUG_SERVER_PORT`` is set: any program that reaches
the port can run code here, as with upstream.
"""

from __future__ import annotations

import asyncio
import os

from monarch.actor import Actor, endpoint
from monarch.actor.controllers import get_or_spawn_controller
from monarch.compat.debug_command import (
    Attach,
    Cast,
    Continue,
    DebugCommand,
    Help,
    ListCommand,
    Quit,
)
from monarch.compat.debug_io import DebugCliIO, DebugIO, DebugIOError, DebugStdIO
from monarch.compat.debug_session import DebugSession, DebugSessionInfo, DebugSessions
from monarch.core.rank_sets import coordinates
from monarch.debugger.holds_table import grid
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent

_Infos = list[DebugSessionInfo]  # An endpoint is called `list`, too.

# The variables that say where it listens, as upstream names them and their defaults.
_MONARCH_DEBUG_SERVER_HOST_ENV_VAR = "MONARCH_DEBUG_SERVER_HOST"
_MONARCH_DEBUG_SERVER_HOST_DEFAULT = "localhost"
_MONARCH_DEBUG_SERVER_PORT_ENV_VAR = "MONARCH_DEBUG_SERVER_PORT"
_MONARCH_DEBUG_SERVER_PORT_DEFAULT = "27000"
_MONARCH_DEBUG_SERVER_PROTOCOL_ENV_VAR = "MONARCH_DEBUG_SERVER_PROTOCOL"
_MONARCH_DEBUG_SERVER_PROTOCOL_DEFAULT = "tcp"

_POLL_SECONDS = 0.05
_ENTER_SECONDS = 0.5

_HELP = (
    "monarch_dbg commands:\n",
    "\tattach <actor_name> <rank> - attach to a debug session\n",
    "\tlist - list all debug sessions\n",
    "\tquit - exit the debugger, leaving all sessions in place\n",
    "\tcast <actor_name> ranks(...) <command> - send a pdb command to several ranks:\n"
    "\t\tranks(1), ranks(1,2), ranks(0:8:2), ranks(dim1=1,dim2=(0,3),dim3=:4)\n",
    "\tcontinue - clear all breakpoints and tell all ranks to continue\n",
    "\thelp - print this help message\n",
)


class DebugController(Actor):
    """Serves one console at a time, over ``_debug_io``."""

    def __init__(self) -> None:
        self.sessions = DebugSessions()
        self._task_lock = asyncio.Lock()
        #: Serves the console; ``None`` before the first connection.
        self._task: asyncio.Task[None] | None = None
        self._debug_io: DebugIO = DebugStdIO()
        self._server: asyncio.Future[asyncio.Server] = asyncio.get_running_loop().create_future()
        if os.environ.get(_MONARCH_DEBUG_SERVER_PORT_ENV_VAR):
            self._serving = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        host, port = _get_debug_server_host(), _get_debug_server_port()
        server = await asyncio.start_server(self._come_in, host, port)
        self._server.set_result(server)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
            await self._debug_io.quit()
        if self._server.done():
            self._server.result().close()

    async def _come_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection, and end the console of the connection before it."""
        async with self._task_lock:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            self._debug_io = DebugCliIO(reader, writer)
            self._task = asyncio.ensure_future(self._enter())

    def _look(self) -> None:
        """Update the sessions from the calls that are held now."""
        agent = process.current()
        holds = agent.holds.all() if isinstance(agent, ClientAgent) else []
        by_hold = {s.hold.id: s for s in self.sessions.iter() if s.hold is not None}
        self.sessions = DebugSessions()
        for hold in holds:
            coords = coordinates(hold.rank, hold.labels, hold.sizes)
            session = by_hold.get(hold.id) or DebugSession(
                hold.rank, coords, hold.host, hold.actor, hold
            )
            session.hold = hold
            if (hold.actor, hold.rank) not in self.sessions:
                self.sessions.insert(session)

    @endpoint
    async def wait_pending_session(self) -> None:
        """Wait until a call is held."""
        self._look()
        while not len(self.sessions):
            await asyncio.sleep(_POLL_SECONDS)
            self._look()

    @endpoint
    async def list(self, print_output: bool = True) -> _Infos:
        """Return the held calls, by actor and rank; print them too, unless ``print_output`` is
        false."""
        return await self._list(print_output)

    async def _list(self, print_output: bool) -> _Infos:
        self._look()
        infos = self.sessions.info()
        if print_output:
            rows = [list(map(str, vars(info).values())) for info in infos]
            head = ["Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No."]
            await self._debug_io.output(grid(head, rows))
        return infos

    async def _enter(self) -> None:
        """Serve the console until `quit`."""
        await asyncio.sleep(_ENTER_SECONDS)
        io = self._debug_io
        try:
            await io.output(
                "\n\n************************ MONARCH DEBUGGER ************************\n"
            )
            await io.output("Enter 'help' for a list of commands.\n")
            await io.output("Enter 'list' to show all active breakpoints.\n\n")
            while await self._obey(await io.input("monarch_dbg> ")):
                pass
        except DebugIOError:
            return

    async def _obey(self, line: str) -> bool:
        """Run a line; return False to leave."""
        if not line.strip():
            return True
        io = self._debug_io
        command = await DebugCommand.parse(io, line)
        self._look()
        try:
            if isinstance(command, Help):
                for text in _HELP:
                    await io.output(text)
            elif isinstance(command, Attach):
                await self.sessions.get(command.actor_name, command.rank).attach(io)
            elif isinstance(command, ListCommand):
                await self._list(True)
            elif isinstance(command, Continue):
                await self._cast_all(None, "clear")
                await self._cast_all(None, "c")
            elif isinstance(command, Cast):
                await self._cast_all(command, command.command)
            elif isinstance(command, Quit):
                await io.output("Quitting debug session...\n")
                await io.quit()
                return False
        except DebugIOError:
            raise
        except Exception as error:
            await io.output(f"Error processing command: {error}\n")
        return True

    async def _cast_all(self, cast: Cast | None, line: str) -> None:
        selection = None if cast is None else (cast.actor_name, cast.ranks)
        sessions = [*self.sessions.iter(selection)]
        await asyncio.gather(
            *(session.attach(self._debug_io, line, suppress_output=True) for session in sessions)
        )


def debug_controller() -> DebugController:
    """Return the program's debug controller; make it at the first call."""
    return get_or_spawn_controller("debug_controller", DebugController).get()  # type: ignore[no-any-return]


def _get_debug_server_host() -> str:
    return os.environ.get(_MONARCH_DEBUG_SERVER_HOST_ENV_VAR, _MONARCH_DEBUG_SERVER_HOST_DEFAULT)


def _get_debug_server_port() -> str:
    return os.environ.get(_MONARCH_DEBUG_SERVER_PORT_ENV_VAR, _MONARCH_DEBUG_SERVER_PORT_DEFAULT)


def _get_debug_server_protocol() -> str:
    return os.environ.get(
        _MONARCH_DEBUG_SERVER_PROTOCOL_ENV_VAR, _MONARCH_DEBUG_SERVER_PROTOCOL_DEFAULT
    )
