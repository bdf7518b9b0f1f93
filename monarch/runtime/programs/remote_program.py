"""A client's side of programs on hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from monarch.net.identifiers import new_uid
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.programs.byte_flows import CHUNK_BYTES, WINDOW_BYTES
from monarch.runtime.programs.byte_streams import LOST, streams_of
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import (
    LeaveProgram,
    ProgramBegun,
    ResizeTerminal,
    RunProgram,
    SignalProgram,
    StreamData,
    StreamEnd,
    StreamRoom,
    ViewProgram,
)


class ProgramEnd(NamedTuple):
    """The end of a program: its exit status, as shells have it, and the reason if the status is not
    the program's own."""

    status: int
    reason: str = ""


class RemoteProgram:
    """A program on ``host``.

    ``on_output(stream, data)`` is called on the I/O loop, and must not block. Call ``shown`` for
    output that was handled: the program must wait while a window of output is not. ``on_end`` is
    called when the program has ended and ``ended`` is set. The program ends with this process,
    unless it is kept.
    """

    def __init__(
        self,
        node: Node,
        host: ProcAddress,
        on_output: Callable[[int, bytes], object],
        *,
        uid: Uid = "",
    ) -> None:
        self.host = host
        self.uid = uid or new_uid()
        self.started: Promise[Response[ProgramBegun]] = Promise()
        self.ended: Promise[ProgramEnd] = Promise()
        self._node = node
        self.on_output = on_output
        self._room = WINDOW_BYTES
        self._has_room = threading.Condition()

    def run(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        directory: str = "",
        size: tuple[int, int] = (0, 0),
        script: bytes | None = None,
        is_python: bool = False,
        is_kept: bool = False,
        title: str = "",
    ) -> None:
        """Start the program; ``started`` gets the host's answer. ``size`` has the rows and columns
        of its terminal.
        """
        node = self._node
        self._ask(
            RunProgram(
                uid=self.uid,
                owner=node.address,
                pid=os.getpid(),
                arguments=tuple(arguments),
                env=dict(env or {}),
                directory=directory,
                rows=size[0],
                columns=size[1],
                has_script=script is not None,
                is_python=is_python,
                is_kept=is_kept,
                title=title,
            ),
            script or b"",
        )

    def view(self, size: tuple[int, int]) -> None:
        """Ask the host to show a kept program; ``started`` gets the answer."""
        node, (rows, columns) = self._node, size
        self._ask(
            ViewProgram(
                uid=self.uid, viewer=node.address, pid=os.getpid(), rows=rows, columns=columns
            )
        )

    def _ask(self, order: RunProgram | ViewProgram, payload: bytes = b"") -> None:
        streams = streams_of(self._node)
        streams.add(self.uid, self.host.uid, self)
        answer = self._node.ask(self.host, order, payload)

        def answered() -> None:
            self.started.set(answer.value)
            if answer.value.error:
                streams.remove(self.uid)
                self.on_over(LOST, answer.value.error)
            else:
                streams.watch(self.host, answer.value.answer)

        answer.on_set(answered)

    def on_data(self, stream: int, data: bytes) -> None:
        self.on_output(stream, data)

    def on_room(self, room: StreamRoom) -> None:
        with self._has_room:
            self._room += room.num_bytes
            self._has_room.notify_all()

    def on_end(self, end: StreamEnd) -> None: ...

    def on_over(self, status: int, reason: str) -> None:
        self.ended.set(ProgramEnd(status, reason))
        with self._has_room:
            self._has_room.notify_all()

    def shown(self, stream: int, num_bytes: int) -> None:
        """Report that so many bytes of its output were handled."""
        room = StreamRoom(self.uid, stream, num_bytes, self._node.uid)
        if not self.ended.is_set:
            self._node.send(self.host, room)

    def write(self, data: bytes) -> None:
        """Write data to the program's standard input; block until there is room."""
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            with self._has_room:
                self._has_room.wait_for(lambda: self._room > 0 or self.ended.is_set)
                self._room -= len(chunk)
            if self.ended.is_set:
                return
            self._node.send(self.host, StreamData(self.uid, 0), chunk)

    def end_input(self) -> None:
        """Close the program's standard input."""
        self._node.send(self.host, StreamEnd(self.uid, 0))

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children; 9 ends all of them."""
        self._node.send(self.host, SignalProgram(self.uid, number))

    def resize(self, size: tuple[int, int]) -> None:
        self._node.send(self.host, ResizeTerminal(self.uid, *size))

    def leave(self) -> None:
        """Stop viewing a kept program; end a program that is not kept."""
        streams_of(self._node).remove(self.uid)
        if not self.ended.is_set:
            self._node.send(self.host, LeaveProgram(self.uid, self._node.uid))
