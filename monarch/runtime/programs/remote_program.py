"""A client's side of programs on hosts."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from monarch.net.identifiers import new_uid
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.programs.byte_flows import CHUNK_BYTES, WINDOW_BYTES
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import (
    LeaveProgram,
    ProcDown,
    ProgramBegun,
    ProgramEnded,
    ResizeTerminal,
    RunProgram,
    SignalProgram,
    StreamData,
    StreamEnd,
    StreamRoom,
    ViewProgram,
)

LOST = 255
"""The status of a program that was lost with its host, as for ssh."""

Handle = Callable[[Envelope[StreamData | StreamEnd | StreamRoom]], None]


class Stream(Protocol):
    """A receiver of the messages of one uid. On the I/O loop, so it must not block."""

    host: ProcAddress

    def on_data(self, stream: int, data: bytes) -> None: ...

    def on_room(self, num_bytes: int) -> None: ...

    def on_end(self, stream: int) -> None: ...

    def on_over(self, status: int, reason: str) -> None: ...


class Streams:
    """Passes the messages of programs and forwarded connections to their receivers, by uid.

    Use ``streams_of``. ``at_host`` gets the messages for programs and connections of the host agent
    in this process, if it has one.
    """

    def __init__(self, node: Node) -> None:
        self.at_host: Handle | None = None
        self._node = weakref.ref(node)
        self._streams: dict[Uid, Stream] = {}
        node.handle(StreamData, self._on_stream)
        node.handle(StreamEnd, self._on_stream)
        node.handle(StreamRoom, self._on_stream)
        node.on(ProgramEnded, self._on_program_ended)
        node.peer_down.on_down.append(self._on_peer_down)

    def add(self, uid: Uid, stream: Stream) -> None:
        """Pass messages of ``uid`` to ``stream`` from now on."""
        self._streams[uid] = stream

    def remove(self, uid: Uid) -> None:
        self._streams.pop(uid, None)

    def watch(self, host: ProcAddress, begun: ProgramBegun) -> None:
        """Watch for the end of a host's agent, whose process ``begun`` names."""
        node = self._node()
        if node is None:
            return
        address = ProcAddress(host.uid, host.urls, begun.machine)
        down = ProcDown(host.uid, "the host agent's process ended", expected=True)
        node.failure_detector.watch(address, begun.pid, lambda: node.peer_down.report(down))

    def _on_stream(self, envelope: Envelope[StreamData | StreamRoom | StreamEnd]) -> None:
        message = envelope.message
        # Stream 0 leads to a host; messages about its room lead back to the client.
        if (message.stream == 0) != isinstance(message, StreamRoom):
            if self.at_host is not None:
                self.at_host(envelope)
            return
        stream = self._streams.get(message.uid)
        if stream is None:
            return
        if isinstance(message, StreamData):
            stream.on_data(message.stream, bytes(envelope.payload))
        elif isinstance(message, StreamRoom):
            stream.on_room(message.num_bytes)
        else:
            stream.on_end(message.stream)

    def _on_program_ended(self, message: ProgramEnded) -> None:
        stream = self._streams.pop(message.uid, None)
        if stream is not None:
            stream.on_over(message.status, message.reason)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        for stream_uid, stream in list(self._streams.items()):
            if stream.host.uid == uid:
                self._streams.pop(stream_uid, None)
                stream.on_over(LOST, f"its host was lost: {down.reason}")


_streams: weakref.WeakKeyDictionary[Node, Streams] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def streams_of(node: Node) -> Streams:
    """Return the streams of the process that has this node."""
    with _making:
        if node not in _streams:
            _streams[node] = Streams(node)
        return _streams[node]


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
        streams.add(self.uid, self)
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

    def on_room(self, num_bytes: int) -> None:
        with self._has_room:
            self._room += num_bytes
            self._has_room.notify_all()

    def on_end(self, stream: int) -> None: ...

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
