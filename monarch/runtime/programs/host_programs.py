"""A host agent's side of programs and forwarded ports: starts, shows and ends them.

Each client that can connect to the agent may run programs here: it belongs to the job's user, who
has the job's secret.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from monarch.net.io_loop import IoLoop
from monarch.runtime.links.secret import SECRET_VARIABLES
from monarch.runtime.node import Node
from monarch.runtime.programs.byte_streams import streams_of
from monarch.runtime.programs.running_program import RunningProgram
from monarch.runtime.programs.streamed_socket import StreamedSocket
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    LeaveProgram,
    Message,
    OpenPort,
    ProcDown,
    ProgramBegun,
    Request,
    ResizeTerminal,
    RunProgram,
    SignalProgram,
    StreamData,
    StreamEnd,
    StreamRoom,
    ViewProgram,
)

M = TypeVar("M", bound=Message)

_CONNECT_SECONDS = 10.0
_MAX_OVER = 50  # kept programs that have ended, and can still be looked at


class _Workspace(Protocol):
    root: str

    def import_folders(self) -> tuple[str, ...]: ...


class ProgramHost(Protocol):
    """The parts of a host's agent that programs use."""

    node: Node
    name: str
    directory: str

    @property
    def workspace(self) -> _Workspace: ...

    @property
    def client(self) -> ProcAddress | None: ...


class HostPrograms:
    """The programs of one host, and the connections of clients to its ports.

    They share a loop of their own, so that their output does not delay the agent.
    """

    def __init__(self, agent: ProgramHost) -> None:
        self._agent, self._node, self._streams = agent, agent.node, streams_of(agent.node)
        #: The loop of programs and connections; made for the first of them.
        self._loop: IoLoop | None = None
        self._lock = threading.Lock()
        self._programs: dict[Uid, RunningProgram] = {}
        #: The connections to ports. Each ends by itself with the client that opened it.
        self._sockets: dict[Uid, StreamedSocket] = {}
        #: By client: what it started, views or has open here.
        self._owners: dict[Uid, set[Uid]] = {}
        #: The files of programs that were sent as scripts.
        self._scripts: dict[Uid, str] = {}
        node = agent.node
        node.handle(RunProgram, self._on_run)
        node.on(ViewProgram, self._on_own_loop(self._view))
        node.on(LeaveProgram, self._on_own_loop(self._leave))
        node.on(SignalProgram, self._on_own_loop(self._signal))
        node.on(ResizeTerminal, self._on_own_loop(self._resize))
        node.on(OpenPort, self._on_open_port)
        self._streams.at_host = self._on_stream
        node.peer_down.on_down.append(self._on_peer_down)

    def describe(self) -> list[dict[str, Any]]:
        """Return a description of each program, also of kept programs that have ended."""
        return [program.describe() for program in list(self._programs.values())]

    @property
    def num_in_use(self) -> int:
        """Return how many programs and connections have not ended."""
        running = sum(program.status is None for program in list(self._programs.values()))
        return running + len(self._sockets)

    def _soon(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = IoLoop("monarch-programs")
                self._loop.start()
        self._loop.call_soon(action)

    def _on_own_loop(self, handler: Callable[[M], None]) -> Callable[[M], None]:
        """Return a function that runs ``handler`` on the loop of programs."""
        return lambda message: self._soon(lambda: handler(message))

    def _on_run(self, envelope: Envelope[RunProgram]) -> None:
        order = envelope.message
        script = bytes(envelope.payload) if order.has_script else None
        self._soon(lambda: self._start(order, script))

    def _start(self, order: RunProgram, script: bytes | None) -> None:
        answer, loop = self._node.answer, self._loop
        assert loop is not None
        directory = os.path.expanduser(order.directory) or self._agent.workspace.root
        if not order.directory and not os.path.isdir(directory):
            directory = os.path.expanduser("~") if os.path.isdir(os.path.expanduser("~")) else "/"
        if order.directory and not os.path.isdir(directory):
            answer(order, error=f"there is no folder {directory}")
            return
        if order.uid in self._programs:
            answer(order, error="there is a program of this uid")
            return
        try:
            command = self._command(order, script)
            program = RunningProgram(
                loop,
                order,
                command,
                self._environment(order),
                directory,
                streams=self._streams,
                over=lambda: self._over(order),
            )
        except (OSError, ValueError) as error:
            self._remove_script(order.uid)
            answer(order, error=f"cannot start it: {error}")
            return
        self._programs[order.uid] = program
        if not order.is_kept:
            self._watch(order.owner, order.pid, order.uid)
        self._answer(order, directory)

    def _answer(self, order: Request[ProgramBegun], directory: str = "") -> None:
        machine = self._node.address.machine
        self._node.answer(order, ProgramBegun(os.getpid(), machine, self._agent.name, directory))

    def _command(self, order: RunProgram, script: bytes | None) -> list[str]:
        command = [sys.executable] if order.is_python else []
        command += order.arguments[: 0 if script is not None else None]
        if script is not None:
            # The arguments are the script's. In front of them is its interpreter, unless its first
            # line names that.
            fd, path = tempfile.mkstemp(prefix="script-", dir=self._agent.directory)
            with os.fdopen(fd, "wb") as file:
                file.write(script)
            self._scripts[order.uid] = path
            if not order.is_python:
                os.chmod(path, 0o700)
                if not script.startswith(b"#!"):
                    command = [shutil.which("bash") or "/bin/sh"]
            command += [path, *order.arguments]
        elif order.rows and not command:
            shell = os.environ.get("SHELL", "")
            command = [shell if os.access(shell, os.X_OK) else "/bin/sh", "-i"]
        if not command:
            raise ValueError("no command was given")
        return command

    def _environment(self, order: RunProgram) -> dict[str, str]:
        env = dict(os.environ)
        # As in procs, the workspace's code is found first.
        folders = [*self._agent.workspace.import_folders(), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        if not env["PYTHONPATH"]:
            del env["PYTHONPATH"]
        if self._agent.workspace.root:
            env["WORKSPACE_DIR"] = self._agent.workspace.root
        bin_folder = os.path.dirname(sys.executable)
        if bin_folder not in env.get("PATH", "").split(os.pathsep):
            env["PATH"] = f"{bin_folder}{os.pathsep}{env.get('PATH', os.defpath)}"
        env["MONARCH_HOST"] = self._agent.name
        for name in SECRET_VARIABLES:
            env.pop(name, None)
        env.update(order.env)
        return env

    def _over(self, order: RunProgram) -> None:
        self._remove_script(order.uid)
        if not order.is_kept:
            del self._programs[order.uid]
            self._forget(order.owner.uid, order.uid)
            return
        over = [uid for uid, kept in self._programs.items() if kept.status is not None]
        for uid in over[:-_MAX_OVER]:
            del self._programs[uid]

    def _remove_script(self, uid: Uid) -> None:
        path = self._scripts.pop(uid, None)
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _watch(self, owner: ProcAddress, pid: int, uid: Uid) -> None:
        """Watch an owner, so that its programs end with it."""
        owned = self._owners.setdefault(owner.uid, set())
        owned.add(uid)
        if len(owned) > 1:
            return
        node = self._node

        def ended() -> None:
            node.peer_down.report(ProcDown(owner.uid, "the client's process ended", expected=True))

        node.loop.call_soon(lambda: node.failure_detector.watch(owner, pid, ended))

    def _forget(self, owner: Uid, uid: Uid) -> None:
        owned = self._owners.get(owner, set())
        owned.discard(uid)
        if not owned and self._owners.pop(owner, None) is not None:
            client = self._agent.client
            if client is None or client.uid != owner:
                detector = self._node.failure_detector
                self._node.loop.call_soon(lambda: detector.unexpect(owner))

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        if self._loop is not None:
            self._soon(lambda: self._owner_gone(uid))

    def _owner_gone(self, owner: Uid) -> None:
        self._owners.pop(owner, None)
        for program in list(self._programs.values()):
            if program.is_seen_by(owner):
                program.leave(owner)

    def _view(self, order: ViewProgram) -> None:
        program = self._programs.get(order.uid)
        if program is None or not program.order.is_kept:
            self._node.answer(order, error="it is not there any more")
            return
        self._watch(order.viewer, order.pid, order.uid)
        self._answer(order)
        program.view(order.viewer, order.rows, order.columns)

    def _leave(self, order: LeaveProgram) -> None:
        if order.uid in self._programs:
            self._programs[order.uid].leave(order.viewer)
            if self._programs[order.uid].order.is_kept:
                self._forget(order.viewer, order.uid)

    def _signal(self, order: SignalProgram) -> None:
        if order.uid in self._programs:
            self._programs[order.uid].signal(order.number)

    def _resize(self, order: ResizeTerminal) -> None:
        if order.uid in self._programs:
            self._programs[order.uid].resize(order.rows, order.columns)

    def _on_open_port(self, order: OpenPort) -> None:
        # On a thread, because connecting may take a while.
        threading.Thread(
            target=self._connect, args=(order,), name="monarch-connect", daemon=True
        ).start()

    def _connect(self, order: OpenPort) -> None:
        address = order.host, order.port_number
        try:
            connection = socket.create_connection(address, _CONNECT_SECONDS)
        except OSError as error:
            words = error.strerror or str(error)
            why = f"cannot connect to port {order.port_number} of {order.host} there: {words}"
            self._node.answer(order, error=why)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._soon(lambda: self._serve(order, connection))

    def _serve(self, order: OpenPort, connection: socket.socket) -> None:
        assert self._loop is not None
        uid, owner = order.uid, order.owner

        def over() -> None:
            self._sockets.pop(uid, None)
            self._forget(owner.uid, uid)

        streamed = self._sockets[uid] = StreamedSocket(
            self._streams, self._loop, connection, uid, owner, over=over, is_at_host=True
        )
        self._watch(owner, order.pid, uid)
        self._answer(order)
        streamed.start()

    def _on_stream(self, envelope: Envelope[StreamData | StreamRoom | StreamEnd]) -> None:
        message, data = envelope.message, bytes(envelope.payload)

        def pass_on() -> None:  # After the order to run the program.
            program = self._programs.get(message.uid)
            if program is None:
                return
            if isinstance(message, StreamData):
                program.put(data)
            elif isinstance(message, StreamEnd):
                program.end()
            else:
                program.taken(message)

        self._soon(pass_on)

    def close(self) -> None:
        """End all programs and connections, because the agent ends."""
        loop = self._loop
        if loop is None:
            return

        def end() -> None:
            for program in self._programs.values():
                program.close()
            for streamed in list(self._sockets.values()):
                streamed.close_now()

        with contextlib.suppress(Exception):
            loop.run_on_loop(end, timeout=1.0)
        loop.stop()
