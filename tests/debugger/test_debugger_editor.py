"""An editor at all ranks: a scripted client of the debug adapter protocol, as VS Code would be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.debugger.editor import AttachRequest, EditorBridge, launch_entry, write_launch
from monarch.debugger.visit import Visit
from tests.debugger import held_actors
from tests.debugger.dap_client import DAP_SECONDS, DapClient
from tests.debugger.held_actors import Stepper
from tests.debugger.typist import line_of, visit_self
from tests.support import Program, wait_for

pytest.importorskip("debugpy")


@pytest.fixture
def visit() -> Visit:
    return visit_self()


@pytest.fixture
def bridge(visit: Visit) -> Iterator[EditorBridge]:
    made = EditorBridge(visit, pytest.fail, {})
    yield made
    made.close()


@pytest.mark.long
def test_one_editor_stops_all_ranks_at_a_line_and_leaves_them_running(
    visit: Visit, bridge: EditorBridge
) -> None:
    steppers = this_host().spawn_procs({"gpus": 4}).spawn("stepper", Stepper)
    steppers.echo.call(0).get(timeout=60)
    procs = [proc for proc in visit.procs() if proc.mesh == "procs"]
    assert bridge.join(procs) == []
    line = line_of("        return value")
    with contextlib.ExitStack() as stack:
        first = DapClient(bridge.port)
        stack.callback(first.close)
        first.begin(held_actors.__file__, line, connect={"host": "127.0.0.1", "port": bridge.port})
        editors = [first]
        while len(editors) < len(procs):
            child = first.event("debugpyAttach")
            editors.append(DapClient(bridge.port))
            stack.callback(editors[-1].close)
            editors[-1].begin(
                held_actors.__file__, line, subProcessId=child["subProcessId"],
                connect=child["connect"],
            )  # fmt: skip
        # An editor is told that it has attached before all threads are traced.
        wait_for(lambda: all(steppers.is_traced.call().get(timeout=60).values()), 60)
        answer = steppers.echo.call("seen")
        for editor in editors:
            name, _, at, frame = editor.stopped_at()
            assert (name, at) == ("echo", line)
            assert editor.value("value", frame) == "'seen'"
        for editor in reversed(editors):
            editor.send("disconnect", terminateDebuggee=False)
        assert list(answer.get(timeout=DAP_SECONDS).values()) == ["seen"] * 4
    assert list(steppers.echo.call("on").get(timeout=60).values()) == ["on"] * 4


@pytest.mark.long
def test_the_session_of_a_rank_that_was_killed_ends(
    visit: Visit, bridge: EditorBridge, faults: list[Any]
) -> None:
    steppers = this_host().spawn_procs({"gpus": 1}, name="killed").spawn("stepper", Stepper)
    steppers.echo.call(0).get(timeout=60)
    (proc,) = [proc for proc in visit.procs() if proc.mesh == "killed"]
    assert bridge.join([proc]) == []
    with contextlib.closing(DapClient(bridge.port)) as editor:
        line = line_of("        return value")
        editor.begin(held_actors.__file__, line, connect={"host": "127.0.0.1", "port": bridge.port})
        os.kill(proc.pid, signal.SIGKILL)
        editor.event("terminated")
        wait_for(lambda: faults, 60)


_ATTACHES = """
    import encodings.idna, os, socket  # The first, as the other may not read Python's files.
    if os.environ["USER_ID"] != "0":
        os.setgroups([])
        os.setgid(int(os.environ["USER_ID"]))
        os.setuid(int(os.environ["USER_ID"]))
    with socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 20) as end:
        body = b'{"seq": 1, "type": "request", "command": "initialize", "arguments": {}}'
        answer = b""
        try:
            end.sendall(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
            answer = end.recv(100)
        except ConnectionError:
            pass
    print("told", len(answer) > 0, flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_hung_up_on(
    bridge: EditorBridge, program: Callable[..., Program]
) -> None:
    for user, is_told in (("65534", "False"), ("0", "True")):
        attaching = program(_ATTACHES, PORT=str(bridge.port), USER_ID=user)
        assert attaching.line("told", 30.0) == is_told


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


def dap(message: dict[str, object]) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_rank_is_told_where_its_own_host_has_the_workspace() -> None:
    roots = [("/mine", "/host0"), ("/mine", "/host1")]
    theirs = {"localRoot": "/lib", "remoteRoot": "/usr/lib"}
    entry = launch_entry(1, roots)
    asked = {"pathMappings": [theirs, *entry["pathMappings"]], "justMyCode": True}
    before, after = dap({"type": "request", "command": "pydevdSystemInfo"}), dap({"seq": 9})
    attach = {"type": "request", "seq": 2, "command": "attach", "arguments": asked}
    sent = before + dap(attach) + after
    request = AttachRequest(roots[1:], roots)
    passed = b"".join(request.pass_on(sent[at : at + 7]) for at in range(0, len(sent), 7))
    assert request.has_passed
    asked["pathMappings"] = [theirs, {"localRoot": "/mine", "remoteRoot": "/host1"}]
    assert passed == before + dap(attach) + after
