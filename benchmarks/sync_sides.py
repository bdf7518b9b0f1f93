"""The two sides that `benchmarks/sync.py` compares: `Ours` and `Rsync`, each with N hosts.

Ours is the engine itself: a process for every host keeps a `Replica` and answers over loopback TCP
with a bare framing; no runtime, no reload. Rsync is one daemon with a module for every host, tuned:
TCP_NODELAY at both ends, without which each session loses 130 ms to delayed acknowledgements.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from monarch_sync import HostView, Instalments, Outgoing, Push, Replica, Scan, Scanner, Workspace
from monarch_sync.messages import AskHistory, Commit, HistoryReply, Message, decode, encode
from monarch_sync.replicas.replica import SETTLE_SECONDS

_HEAD = struct.Struct("<III")  # replica, bytes of the message, number of blobs
_BUFFER_BYTES = 64 << 10


class Link:
    """One end of a connection, on which framed messages travel with their blobs."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = link
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0  # what has come and was not asked for yet

    def send(self, index: int, message: bytes, blobs: Sequence[Any] = ()) -> int:
        sizes = struct.pack(f"<{len(blobs)}Q", *map(len, blobs))
        head = _HEAD.pack(index, len(message), len(blobs)) + sizes + message
        small = [head]
        for blob in blobs:
            if len(blob) < 1 << 20:
                small.append(blob)
                continue
            self._link.sendall(b"".join(small))
            self._link.sendall(blob)
            small = []
        self._link.sendall(b"".join(small) if len(small) > 1 else small[0] if small else b"")
        return len(head) + sum(map(len, blobs))

    def receive(self) -> tuple[int, bytes, list[bytearray]]:
        self._have(_HEAD.size)
        index, num_bytes, num_blobs = _HEAD.unpack_from(self._buffer, self._at)
        self._at += _HEAD.size
        sizes: Sequence[int] = ()
        if num_blobs:
            sizes = struct.unpack(f"<{num_blobs}Q", self._exactly(8 * num_blobs))
        message = bytes(self._exactly(num_bytes))
        return index, message, [self._exactly(size) for size in sizes]

    def has_come(self, patience: float) -> bool:
        """Return whether anything arrives within ``patience`` seconds."""
        return self._end > self._at or bool(select.select([self._link], [], [], patience)[0])

    def _have(self, size: int) -> None:
        """Read until the buffer has ``size`` bytes that were not taken yet."""
        if self._at == self._end:
            self._at = 0
            self._end = self._more(self._buffer)
        if self._end - self._at < size:
            self._view[: self._end - self._at] = self._view[self._at : self._end]
            self._at, self._end = 0, self._end - self._at
            while self._end < size:
                self._end += self._more(self._view[self._end :])

    def _exactly(self, size: int) -> bytearray:
        at, end = self._at, self._at + size
        if end <= self._end:
            self._at = end
            return self._buffer[at:end]
        data, here = bytearray(size), self._end - at
        data[:here] = self._view[at : self._end]
        self._at = self._end
        view = memoryview(data)
        while here < size:
            here += self._more(view[here:])
        return data

    def _more(self, view: memoryview | bytearray) -> int:
        got = self._link.recv_into(view)
        if not got:
            raise EOFError
        return got

    def close(self) -> None:
        self._link.close()


def serve(roots: Sequence[str]) -> None:
    """Run a host process: answer one author for its replicas, until the author closes the link."""
    replicas = [Replica(root) for root in roots]
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        link = Link(server.accept()[0])
    unsettled: list[Replica] = []
    with closing(link):
        while True:
            patience = SETTLE_SECONDS
            while unsettled and not link.has_come(patience):
                unsettled.pop().settle()
                patience = 0
            try:
                index, message, blobs = link.receive()
            except EOFError:
                return
            link.send(index, encode(replicas[index].handle(decode(message), blobs)))
            if not replicas[index].is_settled:
                unsettled.append(replicas[index])


class Ours:
    """Our side: an author and its hosts.

    ``bytes_sent`` is of all hosts together, with framing and replies.
    """

    def __init__(self, source: Path, targets: Path, num_hosts: int, num_processes: int = 0) -> None:
        self.workspace = Workspace({source: ""})
        self.scanner = Scanner(self.workspace)
        self.bytes_sent = 0
        self.committing: list[float] = []
        num_processes = num_processes or num_hosts
        roots = [str(targets / f"ours{i}") for i in range(num_hosts)]
        self._hosts: list[tuple[Link, int]] = []
        self._processes = []
        for i in range(num_processes):
            mine = roots[i::num_processes]
            command = [sys.executable, __file__, *mine]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            port = int(process.stdout.readline())
            link = Link(socket.create_connection(("127.0.0.1", port)))
            self._processes.append(process)
            self._hosts += [(link, k) for k in range(len(mine))]
        self.views = [HostView(is_near=True) for _ in range(num_hosts)]
        self.generation = 0

    def push(self, touched: Iterable[Path] | None = None) -> None:
        """Push the folders as they are now, and return when all hosts have committed."""
        scanner = self.scanner
        if not self.generation:
            scan = self._first_scan()
        else:
            scan = scanner.scan() if touched is None else scanner.rescan(touched)
        if all(view.manifest == scan.manifest for view in self.views):
            return
        self.generation += 1
        pushes = [
            Push(self.workspace, scan.manifest, view, self.generation, scanner.contents)
            for view in self.views
        ]
        going: list[tuple[int, Outgoing]] = [(i, push.first()) for i, push in enumerate(pushes)]
        while going:
            # Most get the same, which the runtime makes bytes of once, too.
            data = {id(out): encode(out.message) for _, out in going}
            for i, out in going:
                self._send(i, data[id(out)], out.blobs)
            steps = [(i, pushes[i].receive(self._reply(i))) for i, _ in going]
            going = [(i, step) for i, step in steps if isinstance(step, Outgoing)]
        started = time.perf_counter()
        commit = encode(Commit(self.generation))
        for i in range(len(pushes)):
            self._send(i, commit)
        for i, push in enumerate(pushes):
            push.committed(self._reply(i))
        self.committing.append(time.perf_counter() - started)

    def _first_scan(self) -> Scan:
        """Scan the whole workspace; meanwhile empty hosts get the files that have been scanned."""
        self._meet()
        num_sent = 0

        def send(out: Outgoing) -> None:
            nonlocal num_sent
            num_sent += 1
            data = encode(out.message)
            for i in range(len(self.views)):
                self._send(i, data, out.blobs)

        instalments = Instalments(self.scanner.contents, self.views, 1, send)
        scan = self.scanner.scan(instalments.add)
        instalments.end(scan.manifest)
        for i in range(len(self.views)):
            for _ in range(num_sent):
                self._reply(i)
        return scan

    def _meet(self) -> None:
        """Ask each host whether its replica is empty, as the runtime does."""
        for i in range(len(self.views)):
            self._send(i, encode(AskHistory(0)))
        for i, view in enumerate(self.views):
            told = self._reply(i)
            assert isinstance(told, HistoryReply)
            view.is_empty = told.generation == 0

    def _send(self, i: int, data: bytes, blobs: Sequence[Any] = ()) -> None:
        link, index = self._hosts[i]
        self.bytes_sent += link.send(index, data, blobs)

    def _reply(self, i: int) -> Message:
        # A process answers in the order in which it was asked, and so do we ask.
        _, message, _ = self._hosts[i][0].receive()
        self.bytes_sent += len(message) + _HEAD.size
        return decode(message)

    def close(self) -> None:
        for link, _ in self._hosts:
            link.close()
        for process in self._processes:
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


class Rsync:
    """rsync's side: the same trees, with one session for each host, all at once.

    ``bytes_sent`` is of all sessions so far.
    """

    def __init__(self, source: Path, targets: Path, num_hosts: int) -> None:
        self._source = source
        self.bytes_sent = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        lines = ["use chroot = no", "socket options = TCP_NODELAY", "max connections = 0"]
        if os.getuid() == 0:
            lines += ["uid = root", "gid = root"]
        for i in range(num_hosts):
            target = targets / f"rsync{i}"
            target.mkdir(parents=True)
            lines += [f"[host{i}]", f"path = {target}", "read only = no", "reverse lookup = no"]
        self._num_hosts = num_hosts
        config = targets / "rsyncd.conf"
        config.write_text("\n".join(lines) + "\n")
        self._daemon = subprocess.Popen(
            ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={self._port}",
             "--address=127.0.0.1", "--log-file=/dev/null"],
        )  # fmt: skip
        self._wait_for_daemon()

    def _wait_for_daemon(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("the rsync daemon did not come up")

    def push(self, *options: str) -> None:
        sessions = [
            subprocess.Popen(
                ["rsync", "-a", "--delete", "--stats", "--exclude=.monarch", *options,
                 "--sockopts=TCP_NODELAY", f"--port={self._port}",
                 f"{self._source}/", f"127.0.0.1::host{i}/"],
                stdout=subprocess.PIPE, text=True,
            )
            for i in range(self._num_hosts)
        ]  # fmt: skip
        for session in sessions:
            said, _ = session.communicate()
            if session.returncode:
                raise RuntimeError(f"rsync ended with {session.returncode}")
            for number in re.findall(r"Total bytes (?:sent|received): ([\d,]+)", said):
                self.bytes_sent += int(number.replace(",", ""))

    def close(self) -> None:
        self._daemon.terminate()
        self._daemon.wait(10)


def has_rsync() -> bool:
    return shutil.which("rsync") is not None


if __name__ == "__main__":
    serve(sys.argv[1:])
