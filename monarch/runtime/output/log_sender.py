"""A host agent's side of logs: it reads the procs' pipes, writes files, and sends lines to the
client.

The client reports how much it has printed; at most a window of bytes is under way to it. Further
lines wait, and if too many wait, the oldest are dropped: the files still have them. So a client
with a slow terminal needs only bounded memory on both sides, and delays no proc.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from monarch.config import settings
from monarch.core.log_backlog import Backlog
from monarch.core.log_lines import Written
from monarch.net.io_loop import IoLoop
from monarch.runtime.node import Node
from monarch.runtime.output.log_files import LogFile, LogFiles
from monarch.runtime.output.log_stream import LogStream
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import FlushLogs, Log, LogOptions, LogRoom, LogWindow

_WINDOW_BYTES = 4 << 20
_BACKLOG_BYTES = 512 * 1024


class LastWords(msgspec.Struct):
    """The last output of a dead proc, and the path of its log."""

    lines: tuple[str, ...] = ()
    path: str = ""


class _LogSource(msgspec.Struct):
    uid: Uid
    stream: LogStream
    file: LogFile
    is_streamed: bool
    backlog: Backlog = msgspec.field(default_factory=lambda: Backlog(_BACKLOG_BYTES))


class LogSender:
    """The output of all procs of a host. It has a thread of its own as soon as there are procs.

    The report of a proc's death waits for its last lines, for ``patience_seconds`` at most, as the
    machine may be busy. It gives up sooner if the disk hangs: when ``num_looks_at_disk`` looks have
    found the same write under way. Looks are counted, not seconds, because a machine that is too
    busy to look is too busy to write.
    """

    def __init__(
        self,
        node: Node,
        host_name: str,
        client: Callable[[], ProcAddress | None],
        *,
        look_seconds: float = 0.02,
    ) -> None:
        self.patience_seconds = 2.0
        self.num_looks_at_disk = 10
        self._look_seconds = look_seconds
        self._node = node
        self._host_name = host_name
        self._client = client
        #: The loop that reads the pipes; None before the first proc. It alone uses what follows.
        self._loop: IoLoop | None = None
        self._files = LogFiles()
        #: The living procs. From any thread.
        self._sources: dict[Uid, _LogSource] = {}
        #: The procs with lines that wait for room, the next one first.
        self._waiting: dict[Uid, _LogSource] = {}
        #: The client to which `_room` belongs.
        self._reader: Uid = ""
        #: How many more bytes may be on their way to the client.
        self._room = _WINDOW_BYTES
        #: The write to a file that is under way, and one for whose end nobody waits any more.
        self._write: object | None = None
        self._hanging_write: object | None = None
        #: Whether the lines of later procs go to the client.
        self._streams_by_default = True
        #: The level of Python's log records for later procs.
        self.level = logging.INFO
        node.on(LogRoom, self._on_room)
        node.on(LogOptions, self._on_options)
        node.on(FlushLogs, self._on_flush)

    @property
    def directory(self) -> str:
        """The directory of this run's files; empty if nothing has been written yet."""
        return self._files.directory

    def open(self, uid: Uid, mesh: Uid, name: str, rank: int, label: str) -> tuple[int, int]:
        """Return pipes for the stdout and stderr of a new proc; the caller closes them once passed
        on."""
        if self._loop is None:
            self._loop = IoLoop("monarch-output")
            self._loop.start()
        stream = LogStream(
            self._loop, label, lambda number, written: self._on_lines(source, number, written)
        )
        file = self._files.file(mesh, name, rank)
        source = self._sources[uid] = _LogSource(uid, stream, file, self._streams_by_default)
        return stream.open()

    def label(self, uid: Uid) -> str:
        """Return the label of the last actor that wrote to a proc's stdout.

        "" for an unknown proc.
        """
        source = self._sources.get(uid)
        return source.stream.labels[1] if source is not None else ""

    def end(self, uid: Uid) -> LastWords:
        """Send what a dead proc has left in its pipes, and return its last lines."""
        source = self._sources.pop(uid, None)
        if source is None or self._loop is None:
            return LastWords()
        is_read = threading.Event()
        if self._loop.call_soon(lambda: self._end(source, is_read)):
            self._wait_for(is_read)
        return LastWords(source.stream.tail(settings().log_tail_lines), source.file.path)

    def _wait_for(self, is_read: threading.Event) -> None:
        """Wait until the pipes of a dead proc are read. A log file write that hangs is waited for
        only a while, and only once even if many procs die."""
        deadline = time.monotonic() + self.patience_seconds
        last_write, num_looks = self._write, 0
        while not is_read.wait(self._look_seconds) and time.monotonic() <= deadline:
            write = self._write
            num_looks = num_looks + 1 if write is last_write else 1
            last_write = write
            is_hanging = write is self._hanging_write or num_looks > self.num_looks_at_disk
            if write is not None and is_hanging:
                self._hanging_write = write
                return

    def _end(self, source: _LogSource, is_read: threading.Event) -> None:
        source.stream.drain()
        source.file.close()
        self._waiting.pop(source.uid, None)
        # The last lines are few, so they need not wait for room.
        while source.backlog:
            self._send(source)
        is_read.set()

    def close(self) -> None:
        """Send everything, and close, because the host agent ends."""
        for uid in list(self._sources):
            self.end(uid)
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    def _on_lines(self, source: _LogSource, stream: int, written: Written) -> None:
        self._write = object()
        source.file.write(written.raw)
        self._write = None
        if written.shown and source.is_streamed:
            source.backlog.put(stream, written.shown, source.stream.labels[stream])
            self._waiting[source.uid] = source
            self._send_waiting()

    def _send_waiting(self) -> None:
        client = self._client()
        if client is not None and client.uid != self._reader:
            self._reader, self._room = client.uid, _WINDOW_BYTES
        while self._waiting and self._room > 0:
            uid, source = next(iter(self._waiting.items()))
            self._send(source)
            # One block of each proc in turn, so that none keeps the others from being heard.
            del self._waiting[uid]
            if source.backlog:
                self._waiting[uid] = source

    def _send(self, source: _LogSource) -> None:
        block = source.backlog.take()
        client = self._client()
        if client is None:
            return
        self._room -= len(block.lines)
        path = source.file.path
        log = Log(
            uid=source.uid,
            label=block.label,
            stream=block.stream,
            host=self._node.uid,
            num_dropped=block.num_dropped,
            path=path,
            host_name=self._host_name,
        )
        self._node.send(client, log, block.lines)

    def _on_room(self, room: LogRoom) -> None:

        def more() -> None:
            self._room = min(_WINDOW_BYTES, self._room + room.num_bytes)
            self._send_waiting()

        if self._loop is not None:
            self._loop.call_soon(more)

    def _on_options(self, options: LogOptions) -> None:
        self.after_output(lambda: self._set_options(options))

    def _set_options(self, options: LogOptions) -> None:
        if not options.uids:
            self._streams_by_default = options.stream_to_client
            self.level = options.level
        for source in self._chosen(options.uids):
            source.is_streamed = options.stream_to_client
        client = self._client()
        if client is not None:
            # It is sent in the order of the lines, and counts from the next line on.
            uids = options.uids or (self._node.uid, *self._sources)
            window = LogWindow(uids, options.group, options.window_seconds)
            self._node.send(client, window)
        self._node.answer(options)

    def _chosen(self, uids: Sequence[Uid]) -> list[_LogSource]:
        if not uids:
            return list(self._sources.values())
        return [self._sources[uid] for uid in uids if uid in self._sources]

    def _on_flush(self, flush: FlushLogs) -> None:
        self.after_output(lambda: self._node.answer(flush))

    def after_output(self, action: Callable[[], None]) -> None:
        """Call ``action`` after everything that the procs have printed so far is sent, ended procs
        included.
        """

        def run() -> None:
            for source in list(self._sources.values()):
                source.stream.pump()
            action()

        if self._loop is None:
            action()
        else:
            self._loop.call_soon(run)
