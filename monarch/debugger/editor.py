"""Connects an editor to all ranks: debugpy's adapter on this machine, and a stream to each proc.

The editor attaches to one port on loopback; each rank is a session of its own there. The ranks
listen at no port.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import monarch
from monarch.debugger.visit import NotAnswered, SeenProc, Visit
from monarch.errors import JobError
from monarch.net.identifiers import new_uid
from monarch.net.io_loop import IoLoop
from monarch.python_start import module_arguments
from monarch.runtime.answers import Response
from monarch.runtime.ends.process_group import signal_own_group
from monarch.runtime.programs.byte_streams import streams_of
from monarch.runtime.programs.streamed_socket import StreamedSocket
from monarch.wire.address import Uid
from monarch.wire.message import DapOpened

_ADAPTER_SECONDS = 20.0
_CONNECT_SECONDS = 30.0
_END_SECONDS = 5.0
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)

Roots = Sequence[tuple[str, str]]


class EditorBridge:
    """Runs debugpy's adapter, through which an editor debugs ranks; the editor attaches at
    ``port``.

    ``tell`` is called with a line about each rank that fails to join later. ``folders`` has the
    local folders of the workspace, each with its path in a copy of the workspace. After ``close``
    all ranks run on.
    """

    def __init__(
        self, visit: Visit, tell: Callable[[str], None], folders: Mapping[Path, str]
    ) -> None:
        self._visit = visit
        self._tell = tell
        self._folders = folders
        #: The roots of all procs; their mappings in the editor's request are replaced.
        self._all_roots: list[tuple[str, str]] = []
        #: The pid of the first proc, to which the editor attaches; 0 before.
        self._parent = 0
        #: The procs that join when the editor has attached.
        self._children: list[SeenProc] = []
        #: Set when ``_children`` are known; the thread that joins them waits for it.
        self._may_join = threading.Event()
        #: The adapter's secret, which procs must show.
        self._token = secrets.token_hex(16)
        #: The connections to the adapter, by the uids of their streams.
        self._sessions: dict[Uid, StreamedSocket] = {}
        assert isinstance(visit.node.loop, IoLoop), "an editor needs a loop of the operating system"
        self._loop = visit.node.loop
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(_ADAPTER_SECONDS)
            self._adapter = _Adapter(listener.getsockname()[1], self._token)
            try:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as file:
                    endpoints = json.loads(file.read())
            except (OSError, ValueError):
                self.close()
                raise JobError("debugpy's adapter did not start") from None
        if "error" in endpoints:
            self.close()
            raise JobError(f"debugpy's adapter did not start: {endpoints['error']}")
        self.port = int(endpoints["client"]["port"])
        self._server = endpoints["server"]["host"], int(endpoints["server"]["port"])

    def join(self, procs: Sequence[SeenProc]) -> list[str]:
        """Connect these procs to the adapter; return those that failed, and why.

        The first waits for the editor, and the others join when that has attached: the adapter
        treats them as children of the first, and drops children that come before.
        """
        failed, waiting = [], list(procs)
        self._all_roots = self.roots(procs)
        while waiting and not self._parent:
            proc = waiting.pop(0)
            try:
                self._join(proc)
                self._parent = proc.pid
            except (NotAnswered, OSError) as error:
                failed.append(_why_not(proc, error))
        self._children = waiting
        self._may_join.set()
        return failed

    def roots(self, procs: Iterable[SeenProc]) -> list[tuple[str, str]]:
        """Return pairs of a local folder of the workspace, and its copy on these procs' hosts."""
        pairs = [
            (str(local), f"{proc.workspace}/{remote}".rstrip("/"))
            for proc in procs
            for local, remote in self._folders.items()
            if proc.workspace
        ]
        return list(dict.fromkeys(pairs))

    def _join_children(self) -> None:
        self._may_join.wait()
        children, self._children = self._children, []
        for proc in children:
            try:
                self._join(proc)
            except (NotAnswered, OSError) as error:
                self._tell(_why_not(proc, error))

    def _join(self, proc: SeenProc) -> None:
        visit, uid = self._visit, new_uid()
        connection = socket.create_connection(self._server, _ADAPTER_SECONDS)
        request = AttachRequest(self.roots([proc]), self._all_roots, self._on_attach)
        session = self._sessions[uid] = StreamedSocket(
            streams_of(visit.node), self._loop, connection, uid, proc.address,
            over=lambda: self._sessions.pop(uid, None), change=request.pass_on,
        )  # fmt: skip
        answer = visit.begin(
            proc.uid,
            DapOpened(
                uid=uid,
                token=self._token,
                parent=self._parent,
                client=visit.node.address,
                pid=os.getpid(),
            ),
        )
        session.start_when(answer)
        if not answer.wait(_CONNECT_SECONDS):
            answer.set(Response(None, "it does not answer"))
        if answer.value.error:
            raise NotAnswered(answer.value.error)
        # A rank that was killed says no more.
        visit.node.failure_detector.watch(proc.address, proc.pid, session.close)

    def _on_attach(self) -> None:
        threading.Thread(target=self._join_children, daemon=True).start()

    def wait(self) -> None:
        """Wait until the adapter ends, when the editor has left."""
        self._adapter.wait(None)

    def close(self) -> None:
        """End the adapter, and with it all sessions."""
        for session in list(self._sessions.values()):
            session.close()
        self._adapter.end()


def _why_not(proc: SeenProc, error: Exception) -> str:
    return f"{proc.mesh} {proc.rank}: {error}"


class _Adapter:
    """The process of debugpy's adapter.

    The adapter forks and its parent ends, so its pid is not known: signals go to its process group.
    Its end closes a pipe that it has inherited.
    """

    def __init__(self, port: int, token: str) -> None:
        self._alive, inherited = os.pipe()
        command = [
            sys.executable, *module_arguments("monarch.debugger.adapter"),
            "--for-server", str(port),
            "--host", "127.0.0.1", "--port", "0", "--access-token", token,
        ]  # fmt: skip
        try:
            self._began = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(inherited,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(inherited)

    def wait(self, seconds: float | None) -> bool:
        """Wait at most ``seconds`` for its end, or for ever (``None``); return whether it has
        ended."""
        return bool(select.select([self._alive], [], [], seconds)[0])

    def end(self) -> None:
        """End the adapter, and wait until it has ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal_own_group(self._began, number)
            if self.wait(_END_SECONDS):
                break
        self._began.wait()
        os.close(self._alive)


# Threads of ours are not stopped where an editor stops all.
OUR_RULES = [
    {"path": f"{os.path.dirname(os.path.abspath(monarch.__file__))}/**", "include": False},
    {"path": f"{os.path.dirname(asyncio.__file__)}/**", "include": False},
]


def launch_entry(port: int, roots: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the entry for ``launch.json``; ``roots`` are pairs of folders here and at the
    ranks."""
    return {
        "name": "monarch: all ranks",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "justMyCode": True,
        "rules": OUR_RULES,
        "pathMappings": [path_mapping(local, remote) for local, remote in roots if local != remote],
    }


def write_launch(folder: Path, entry: dict[str, Any]) -> Path:
    """Write the entry into the folder's ``.vscode/launch.json``; return the file's path.

    It replaces an earlier entry. Raises ``ValueError`` for a file that is no plain JSON (it may
    have comments), and leaves it unchanged.
    """
    path = folder / ".vscode" / "launch.json"
    settings: dict[str, Any] = {"version": "0.2.0", "configurations": []}
    if path.exists():
        settings = json.loads(path.read_text(encoding="utf-8"))
    others = [e for e in settings.get("configurations", ()) if e.get("name") != entry["name"]]
    settings["configurations"] = [*others, entry]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(settings, indent=4) + "\n", encoding="utf-8")
    return path


class AttachRequest:
    """The bytes from debugpy's adapter to a rank, up to the request that attaches an editor to it.

    The editor sends one such request for all ranks; if hosts have their copies of the workspace at
    different paths, each must get its own path mappings. ``own_roots`` are the author's folders
    with this rank's paths, ``all_roots`` those of all ranks. Other mappings of the editor are kept.
    ``passed`` is called when the request has passed.
    """

    def __init__(
        self, own_roots: Roots, all_roots: Roots, passed: Callable[[], object] = lambda: None
    ) -> None:
        self._passed = passed
        self._own_mappings = [path_mapping(*root) for root in own_roots if root[0] != root[1]]
        self._all_mappings = [path_mapping(*root) for root in all_roots]
        #: Bytes of a message that has not arrived completely.
        self._unread = b""
        #: Whether the request has passed, so that all other bytes go on as they are.
        self.has_passed = False

    def pass_on(self, data: bytes) -> bytes:
        """Take bytes from the adapter; return those that can go to the rank now."""
        if self.has_passed:
            return data
        self._unread += data
        passed = b""
        while (body := self._take()) is not None:
            message = json.loads(body)
            if message.get("type") == "request" and message.get("command") == "attach":
                self.has_passed = True
                self._passed()
                message["arguments"] = self._mapped(message.get("arguments") or {})
                unread, self._unread = self._unread, b""
                return passed + _framed(json.dumps(message).encode()) + unread
            passed += _framed(body)
        return passed

    def _take(self) -> bytes | None:
        """Return the body of the first message; ``None`` if it has not arrived completely."""
        head, end, content = self._unread.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if not end or length is None or len(content) < int(length[1]):
            return None
        body, self._unread = content[: int(length[1])], content[int(length[1]) :]
        return body

    def _mapped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        others = [m for m in arguments.get("pathMappings") or () if m not in self._all_mappings]
        return {**arguments, "pathMappings": [*others, *self._own_mappings]}


def _framed(body: bytes) -> bytes:
    return b"Content-Length: %d%s%s" % (len(body), _HEAD_END, body)


def path_mapping(local: str, remote: str) -> dict[str, str]:
    """Return a pair of folders as a path mapping in the settings of editors."""
    return {"localRoot": local, "remoteRoot": remote}
