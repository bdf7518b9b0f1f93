"""A client of the debug adapter protocol, as an editor would be."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch.debugger.editor import OUR_RULES

DAP_SECONDS = 60.0


class DapClient:
    """One session; events are kept until they are waited for."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._socket.settimeout(DAP_SECONDS)
        self._file = self._socket.makefile("rb")
        self._number = 0
        self._stopped = 0
        self._kept: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {
            "seq": self._number, "type": "request", "command": command, "arguments": arguments,
        }  # fmt: skip
        body = json.dumps(message).encode()
        self._socket.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self._number

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for message in self._kept:
            if wanted(message):
                self._kept.remove(message)
                return message
        while True:
            try:
                message = self._read()
            except TimeoutError:
                raise AssertionError(f"it has not come; what came: {self._kept}") from None
            if wanted(message):
                return message
            self._kept.append(message)

    def event(self, name: str) -> dict[str, Any]:
        return self.wait(lambda one: one.get("event") == name).get("body") or {}

    def answer(self, number: int) -> dict[str, Any]:
        found = self.wait(lambda one: one.get("request_seq") == number)
        assert found["success"], found
        return found.get("body") or {}

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if not length:
            raise EOFError("the adapter has hung up")
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message

    def begin(self, file: str | Path, line: int, **how: Any) -> None:
        """Attach, with a breakpoint at a line of ``file``; ``how`` is as in an entry of
        ``launch.json``."""
        self.answer(self.send("initialize", adapterID="test", pathFormat="path"))
        attached = self.send("attach", **{"justMyCode": True, "rules": OUR_RULES, **how})
        self.event("initialized")
        source = {"path": str(file)}
        self.answer(self.send("setBreakpoints", source=source, breakpoints=[{"line": line}]))
        self.answer(self.send("configurationDone"))
        self.answer(attached)

    def clear_breakpoints(self, file: str | Path) -> None:
        self.answer(self.send("setBreakpoints", source={"path": str(file)}, breakpoints=[]))

    def stopped_at(self) -> tuple[str, str, int, int]:
        """Wait until a thread stops: its function, file and line, and its frame's id."""
        thread = self._stopped = self.event("stopped")["threadId"]
        frame = self.answer(self.send("stackTrace", threadId=thread))["stackFrames"][0]
        name = frame["name"].rpartition(".")[2]
        return name, frame["source"]["path"], frame["line"], frame["id"]

    def go_on(self) -> None:
        """Have the thread that stopped last run on."""
        self.answer(self.send("continue", threadId=self._stopped))

    def value(self, expression: str, frame: int) -> str:
        """The value of an expression in a frame."""
        asked = self.send("evaluate", expression=expression, frameId=frame)
        return str(self.answer(asked)["result"])

    def close(self) -> None:
        self._file.close()
        self._socket.close()
