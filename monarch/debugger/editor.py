"""An editor at all ranks: debugpy's adapter on this machine, and tunnels to each proc.

The editor attaches to one port on loopback; each rank is a session of its own there. The ranks
listen nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import monarch
from monarch.debugger.visit import NotAnswered, SeenProc, Visit
from monarch.errors import JobError
from monarch.runtime.ends.process_group import end_child
from monarch.wire.codec import Envelope
from monarch.wire.message import DapBytes, DapOpened

_ADAPTER_SECONDS = 20.0
_CONNECT_SECONDS = 30.0
_MOST_BYTES = 64 * 1024


class EditorBridge:
    """``port`` is where the editor attaches. Close it, and all ranks run on."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._token = secrets.token_hex(16)
        self._tunnels: dict[str, socket.socket] = {}
        self._procs: dict[str, SeenProc] = {}
        visit.node.handle(DapBytes, self._on_bytes)
        with socket.create_server(("127.0.0.1", 0)) as told:
            told.settimeout(_ADAPTER_SECONDS)
            self._adapter = _start_adapter(told.getsockname()[1], self._token)
            try:
                connection, _ = told.accept()
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
        """Have these procs speak with the adapter; who does not, and why."""
        failed, parent = [], 0
        for proc in procs:
            try:
                self._join(proc, parent)
                parent = parent or proc.pid
            except (NotAnswered, OSError) as error:
                failed.append(f"{proc.mesh} {proc.rank}: {error}")
        return failed

    def _join(self, proc: SeenProc, parent: int) -> None:
        visit, channel = self._visit, secrets.token_hex(8)
        tunnel = socket.create_connection(self._server, _ADAPTER_SECONDS)
        tunnel.settimeout(None)
        self._tunnels[channel], self._procs[channel] = tunnel, proc
        answer = visit.begin(
            proc.uid,
            lambda port: DapOpened(channel, self._token, parent, visit.address, port, visit.uid),
        )
        # Only now: what the adapter says first must not overtake that order.
        threading.Thread(target=self._pump, args=(channel, tunnel), daemon=True).start()
        error = answer.value.error if answer.wait(_CONNECT_SECONDS) else "it does not answer"
        if error:
            self._tunnels.pop(channel).close()
            raise NotAnswered(error)

    def _pump(self, channel: str, tunnel: socket.socket) -> None:
        while True:
            try:
                data = tunnel.recv(_MOST_BYTES)
            except OSError:
                data = b""
            self._visit.node.send(self._procs[channel].address, DapBytes(channel), data)
            if not data:
                return

    def _on_bytes(self, envelope: Envelope) -> None:
        told = envelope.message
        assert isinstance(told, DapBytes)
        tunnel = self._tunnels.get(told.channel)
        if tunnel is None:
            return
        with contextlib.suppress(OSError):
            if envelope.payload:
                tunnel.sendall(bytes(envelope.payload))
            else:
                tunnel.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        """Until the adapter ends: the editor has left."""
        self._adapter.wait()

    def close(self) -> None:
        """End the adapter, and with it all sessions."""
        for tunnel in self._tunnels.values():
            with contextlib.suppress(OSError):
                tunnel.shutdown(socket.SHUT_RDWR)
            tunnel.close()
        self._tunnels.clear()
        end_child(self._adapter)


def _start_adapter(port: int, token: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "debugpy.adapter", "--for-server", str(port), "--host", "127.0.0.1",
        "--port", "0", "--access-token", token,
    ]  # fmt: skip
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# Threads of ours are not stopped where an editor stops all.
OUR_RULES = [
    {"path": f"{os.path.dirname(os.path.abspath(monarch.__file__))}/**", "include": False},
    {"path": f"{os.path.dirname(asyncio.__file__)}/**", "include": False},
]


def launch_entry(port: int, roots: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What stands in ``launch.json``; ``roots`` are folders here, and where ranks have them."""
    return {
        "name": "monarch: all ranks",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "justMyCode": True,
        "rules": OUR_RULES,
        "pathMappings": [
            {"localRoot": here, "remoteRoot": there} for here, there in roots if here != there
        ],
    }


def write_launch(folder: Path, entry: dict[str, Any]) -> Path:
    """Put the entry into the folder's ``.vscode/launch.json``, in the place of an earlier one.

    A file that is no plain JSON (it may have comments) is left alone: raises ``ValueError``.
    """
    path = folder / ".vscode" / "launch.json"
    kept: dict[str, Any] = {"version": "0.2.0", "configurations": []}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
    others = [one for one in kept.get("configurations", ()) if one.get("name") != entry["name"]]
    kept["configurations"] = [*others, entry]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=4) + "\n", encoding="utf-8")
    return path
