"""An editor at all ranks: a scripted client of the debug adapter protocol, as VS Code would be."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.debugger.editor import OUR_RULES, EditorBridge, launch_entry, write_launch
from monarch.debugger.visit import Visit
from tests.debugger import held_actors
from tests.debugger.held_actors import Stepper
from tests.debugger.typist import line_of, visit_self

pytest.importorskip("debugpy")

_SECONDS = 20.0


class DapClient:
    """One session; events are kept until they are waited for."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._socket.settimeout(_SECONDS)
        self._file = self._socket.makefile("rb")
        self._number = 0
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
            message = self._read()
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

    def begin(self, line: int, **how: Any) -> None:
        """Attach, with a breakpoint at a line of the actors' file."""
        self.answer(self.send("initialize", adapterID="test", pathFormat="path"))
        attached = self.send("attach", justMyCode=True, rules=OUR_RULES, **how)
        self.event("initialized")
        file = {"path": held_actors.__file__}
        self.answer(self.send("setBreakpoints", source=file, breakpoints=[{"line": line}]))
        self.answer(self.send("configurationDone"))
        self.answer(attached)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def visit() -> Visit:
    return visit_self()


@pytest.fixture
def bridge(visit: Visit) -> Iterator[EditorBridge]:
    made = EditorBridge(visit)
    yield made
    made.close()


def test_one_editor_stops_all_ranks_at_a_line_and_leaves_them_running(
    visit: Visit, bridge: EditorBridge
) -> None:
    steppers = this_host().spawn_procs({"gpus": 2}).spawn("stepper", Stepper)
    steppers.echo.call(0).get(timeout=20)
    procs = [proc for proc in visit.procs() if proc.mesh == "procs"]
    assert bridge.join(procs) == []
    line = line_of("        return value")
    with contextlib.ExitStack() as stack:
        first = DapClient(bridge.port)
        stack.callback(first.close)
        first.begin(line, connect={"host": "127.0.0.1", "port": bridge.port})
        child = first.event("debugpyAttach")
        second = DapClient(bridge.port)
        stack.callback(second.close)
        second.begin(line, subProcessId=child["subProcessId"], connect=child["connect"])
        answer = steppers.echo.call("seen")
        for editor in (first, second):
            thread = editor.event("stopped")["threadId"]
            frames = editor.answer(editor.send("stackTrace", threadId=thread))["stackFrames"]
            assert (frames[0]["name"].rpartition(".")[2], frames[0]["line"]) == ("echo", line)
            seen = editor.send("evaluate", expression="value", frameId=frames[0]["id"])
            assert editor.answer(seen)["result"] == "'seen'"
        for editor in (second, first):
            editor.send("disconnect", terminateDebuggee=False)
        assert list(answer.get(timeout=_SECONDS).values()) == ["seen", "seen"]
    assert list(steppers.echo.call("on").get(timeout=20).values()) == ["on", "on"]


def test_the_launch_entry_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    other = {"version": "0.2.0", "configurations": [{"name": "mine"}]}
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/launch.json").write_text(json.dumps(other))
    for port in (1, 2):
        path = write_launch(tmp_path, launch_entry(port, [("/here", "/there"), ("/a", "/a")]))
    found = json.loads(path.read_text())["configurations"]
    assert [one["name"] for one in found] == ["mine", "monarch: all ranks"]
    assert found[1]["connect"]["port"] == 2
    assert found[1]["pathMappings"] == [{"localRoot": "/here", "remoteRoot": "/there"}]


def test_a_launch_file_with_comments_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/launch.json").write_text("// mine\n{}")
    with pytest.raises(ValueError):
        write_launch(tmp_path, launch_entry(1, []))
    assert (tmp_path / ".vscode/launch.json").read_text().startswith("// mine")
