"""Upstream's debugger at upstream's addresses: its grammar, its sessions, its controller."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from monarch._src.actor.debugger.debug_command import (
    Attach,
    Cast,
    Continue,
    DebugCommand,
    Help,
    ListCommand,
    Quit,
)
from monarch._src.actor.debugger.debug_controller import DebugController
from monarch._src.actor.debugger.debug_io import DebugStdIO
from monarch._src.actor.debugger.debug_session import DebugSession, DebugSessionInfo, DebugSessions
from monarch._src.actor.source_loader import SourceLoaderController
from monarch.actor import ActorError, debug_controller, endpoint, get_or_spawn_controller, this_host
from monarch.config import configured
from monarch.errors import JobError
from monarch.tools.commands import debug
from monarch.tools.debug_env import _get_debug_server_host, _get_debug_server_port
from tests.debugger.held_actors import AsyncStepper, Stepper
from tests.support import wait_for

_END = sys.maxsize


@pytest.fixture(autouse=True)
def waits() -> Iterator[None]:
    with configured(breakpoint="wait"):
        yield


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("attach debugee 1", Attach("debugee", 1)),
        ("a my-actor_2 100", Attach("my-actor_2", 100)),
        ("  attach   debugee   7  ", Attach("debugee", 7)),
        ("list", ListCommand()),
        ("l", ListCommand()),
        ("quit", Quit()),
        ("q", Quit()),
        ("help", Help()),
        ("h", Help()),
        ("continue", Continue()),
        ("c", Continue()),
        ("cast debugee ranks(123) n", Cast("debugee", 123, "n")),
        ("cast debugee ranks(1,2,3) b 25", Cast("debugee", [1, 2, 3], "b 25")),
        ("cast debugee ranks(:) p x", Cast("debugee", range(0, _END), "p x")),
        ("cast debugee ranks(1:5:2) n", Cast("debugee", range(1, 5, 2), "n")),
        ("cast debugee ranks(a=1,b=(2,3)) up 2", Cast("debugee", {"a": 1, "b": [2, 3]}, "up 2")),
        ("cast debugee ranks(7:) n", Cast("debugee", range(7, _END), "n")),
        ("cast debugee ranks(3:9) n", Cast("debugee", range(3, 9), "n")),
        ("cast debugee ranks(::) n", Cast("debugee", range(0, _END), "n")),
        ("cast debugee ranks(::4) n", Cast("debugee", range(0, _END, 4), "n")),
        ("cast debugee ranks(7::) n", Cast("debugee", range(7, _END), "n")),
        ("cast debugee ranks(:7:) n", Cast("debugee", range(0, 7), "n")),
        ("cast debugee ranks(:7:2) n", Cast("debugee", range(0, 7, 2), "n")),
        ("cast debugee ranks(7::2) n", Cast("debugee", range(7, _END, 2), "n")),
        ("cast debugee ranks(3:9:) n", Cast("debugee", range(3, 9), "n")),
        ("cast debugee ranks(a=:3) n", Cast("debugee", {"a": range(0, 3)}, "n")),
        (
            "cast debugee ranks(a = 1 , b = 2:) n",
            Cast("debugee", {"a": 1, "b": range(2, _END)}, "n"),
        ),
        ("cast debugee ranks(1)n", Cast("debugee", 1, "n")),
        ("cast ranks ranks(1) n", Cast("ranks", 1, "n")),
    ],
)
def test_commands_are_read(line: str, meant: DebugCommand) -> None:
    assert asyncio.run(DebugCommand.parse(DebugStdIO(), line)) == meant


@pytest.mark.parametrize(
    "line",
    [
        "", "a", "attach", "attach debugee", "attach debugee x", "attach debugee 1 2",
        "a debugee -1", "attach 1", "attachdebugee 1", "lists", "list 1", "quit now", "continue 1",
        "help me", "cast", "cast debugee", "cast debugee ranks(1)", "cast debugee ranks(1) ",
        "cast debugee ranks() n", "cast debugee ranks(1,) n", "cast debugee ranks(-1) n",
        "cast debugee ranks(1 n", "cast debugee rank(1) n", "cast ranks(1) n",
        "cast debugee ranks(a=) n", "cast debugee ranks(a=(1)) n", "cast debugee ranks(a=1,) n",
        "cast debugee ranks(1:2:3:4) n", "cast debugee ranks(1) !x = 1", "castdebugee ranks(1) n",
        "cast debu.gee ranks(1) n", "breakpoint", "a actor", "attacha x 1attach x 1",
        "attach actor 1abc", "cast debugee rnks(1) n", "cast debugee ranks(1ab) n",
        "cast debugee ranks(1,a,3) n", "cast debugee ranks(a:2:4) n", "cast debugee ranks(1,2,3",
        "cast debugee ranks(1,2)) n", "cast debugee ranks(1,2,) n", "cast debugee ranks(,1,2) n",
        "cast debugee ranks(1,,2) n", "cast debugee ranks(:::) n", "cast debugee ranks(:1::) n",
        "cast debugee ranks(1:2:3,4) n", "cast debugee ranks(a=1, b=) n",
        "cast debugee ranks(a=1, b=(1,2) n", "cast debugee ranks(a=1, b=(,1,2) n",
        "cast debugee ranks(a=1, b=(1,,2) n", "cast debugee ranks(a=(1,2), b=1::2 n",
    ],
)  # fmt: skip
def test_what_is_no_command_says_so(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(DebugCommand.parse(DebugStdIO(), line)) is None
    assert capsys.readouterr().out.startswith("Error parsing input: ")


def _sessions() -> DebugSessions:
    sessions = DebugSessions()
    for actor in ("one", "two"):
        for rank in range(4):
            sessions.insert(DebugSession(rank, {"host": rank // 2, "gpu": rank % 2}, "h", actor))
    return sessions


def test_sessions_are_kept_by_actor_and_rank() -> None:
    sessions = _sessions()
    assert len(sessions) == 8
    assert ("one", 3) in sessions
    assert ("one", 4) not in sessions
    with pytest.raises(ValueError, match="rank 1 already exists for actor one"):
        sessions.insert(DebugSession(1, {}, "h", "one"))
    with pytest.raises(ValueError, match="No debug sessions for actor three"):
        sessions.get("three", 0)
    with pytest.raises(ValueError, match="No debug session for rank 9 for actor two"):
        sessions.remove("two", 9)
    assert sessions.remove("two", 3).rank == 3
    assert ("two", 3) not in sessions


def test_sessions_are_chosen_by_ranks_and_dimensions() -> None:
    sessions = _sessions()

    def ranks(selection: Any) -> list[int]:
        return [session.rank for session in sessions.iter(selection)]

    assert len([*sessions.iter()]) == 8
    assert ranks(("one", None)) == [0, 1, 2, 3]
    assert ranks(("one", 2)) == [2]
    assert ranks(("one", [1, 3, 9])) == [1, 3]
    assert ranks(("one", range(1, _END, 2))) == [1, 3]
    assert ranks(("one", {"gpu": 1, "host": range(0, 1)})) == [1]
    assert ranks(("one", {"rack": 1})) == []


class Scripted(DebugController):
    """A controller whose console is scripted, as upstream's tests have it."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.outputs: list[str] = []
        self._lines = lines
        outputs = self.outputs

        class Io(DebugStdIO):
            async def input(self, prompt: str = "") -> str:
                return lines.pop(0)

            async def output(self, msg: str) -> None:
                outputs.append(msg)

        self._debug_io = Io()

    @endpoint
    async def blocking_enter(self, more: Sequence[str] = ()) -> list[str]:
        self._lines += more
        self.outputs.clear()
        async with self._task_lock:
            assert self._task is None
            await self._enter()
        return list(self.outputs)


def _wait_for_sessions(controller: Any, number: int) -> list[DebugSessionInfo]:
    found: list[DebugSessionInfo] = []

    def are_there() -> bool:
        found[:] = controller.list.call_one(print_output=False).get(timeout=20)
        return len(found) == number

    wait_for(are_there, what=f"{number} sessions")
    return found


@pytest.mark.long
def test_ranks_are_stepped_left_and_taken_up_again_and_die_in_the_debugger() -> None:
    """Upstream's `test_debug`, with actors of ours."""
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    debugees = procs.spawn("debugee", AsyncStepper)
    controller = get_or_spawn_controller("walked", Scripted, []).get()

    def enter(*lines: str) -> list[str]:
        said: list[str] = controller.blocking_enter.call_one([*lines, "quit"]).get(timeout=60)
        return said

    answer = debugees.of_rank.call()
    infos = _wait_for_sessions(controller, 4)
    begin = infos[0].lineno
    assert begin is not None
    assert [(i.rank, i.coords["hosts"], i.coords["gpus"]) for i in infos] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1),
    ]  # fmt: skip
    assert {(i.function, i.lineno) for i in infos} == {("held_actors.by_rank", begin)}

    again = ["attach debugee 1", "detach"]
    said = enter("attach debugee 1", "n", "n", "n", "detach", *again)
    first = said.index("--Return--")
    second = said.index("--Return--", first + 1)
    assert said[first : first + 5] == said[second : second + 5]
    assert [said[first + 1], said[first + 3], said[first + 4]] == ["\n", "\n", "(Pdb) "]
    assert re.match(r"> /.*held_actors.py\(\d+\)by_rank\(\)->2\n-> return rank", said[first + 2])

    enter(*["cast debugee ranks(0,3) n"] * 2, "attach debugee 0", "detach")
    lines = [info.lineno for info in _wait_for_sessions(controller, 4)]
    assert (lines[0], lines[2], lines[3]) == (begin + 3, begin, begin + 3)

    enter("attach debugee 2", "c", "detach")
    assert _wait_for_sessions(controller, 4)[2].function == "held_actors.fail"
    said = enter("attach debugee 2", "bt", "c")
    inner = next(i for i, text in enumerate(said) if re.match(r"> .*\)fail\(\)\n-> raise", text))
    last = max(i for i, text in enumerate(said) if re.match(r"> .*\)fail\(\)\n-> raise", text))
    assert re.match(r"\s+/.*held_actors.py\(\d+\)by_rank\(\)\n-> fail\(\)", said[last - 2])
    assert inner < last
    assert [info.rank for info in _wait_for_sessions(controller, 3)] == [0, 1, 3]

    enter("continue")
    _wait_for_sessions(controller, 0)
    with pytest.raises(ActorError, match="ValueError: bad rank"):
        answer.get(timeout=20)


_CLOSURES = """def adds(number):
    def add(value):
        breakpoint()
        value += number
        return value
    return add
"""
_NOWHERE = "/nowhere/of_the_client.py"


class LoaderOfNowhere(SourceLoaderController):
    @endpoint
    def get_source(self, filename: str) -> str:
        if filename != _NOWHERE:
            raise ValueError(f"nobody should ask for {filename}")
        return _CLOSURES


def test_code_that_came_by_value_is_shown_as_the_client_has_it() -> None:
    """Upstream's `test_debug_with_pickle_by_value`."""
    names: dict[str, Any] = {"__name__": "of_the_client"}
    exec(compile(_CLOSURES, _NOWHERE, "exec"), names)
    procs = this_host().spawn_procs({"gpus": 1})
    debugee = procs.spawn("debugee", AsyncStepper)
    controller = get_or_spawn_controller("by_value", Scripted, []).get()
    get_or_spawn_controller("source_loader", LoaderOfNowhere).get()
    answer = debugee.runs.call_one(names["adds"](5), 2)
    (info,) = _wait_for_sessions(controller, 1)
    assert (info.function, info.lineno) == ("of_the_client.add", 4)
    stop = f"b {_NOWHERE.removesuffix('.py')}:5"
    lines = ["attach debugee 0", stop, "c", "p value", "detach", "quit"]
    said = controller.blocking_enter.call_one(lines).get(timeout=60)
    assert f"> {_NOWHERE}(4)add()\n-> value += number" in said
    assert f"Breakpoint 1 at {_NOWHERE}:5" in said
    assert f"> {_NOWHERE}(5)add()\n-> return value" in said
    controller.blocking_enter.call_one(["continue", "quit"]).get(timeout=60)
    assert answer.get(timeout=20) == 7


def test_a_controller_enters_sessions_and_writes_as_pdb_does() -> None:
    debugees = this_host().spawn_procs({"hosts": 2, "gpus": 2}).spawn("debugee", AsyncStepper)
    lines = [
        "list", "attach debugee 1", "n", "p number", "detach", "attach debugee 9",
        "cast debugee ranks(hosts=1) n", "attach debugee 1", "c", "continue", "quit",
    ]  # fmt: skip
    controller = get_or_spawn_controller("scripted", Scripted, lines).get()
    answer = debugees.step.call(1)
    controller.wait_pending_session.call_one().get(timeout=20)
    found: list[Any] = []
    while len(found) < 4:
        found = controller.list.call_one(print_output=False).get(timeout=20)
    assert [(one.actor_name, one.rank, one.coords) for one in found][3] == (
        "debugee", 3, {"hosts": 1, "gpus": 1},
    )  # fmt: skip
    assert found[0].function == "held_actors.step"
    outputs = controller.blocking_enter.call_one().get(timeout=60)
    assert list(answer.get(timeout=20).values()) == [2] * 4
    attached = outputs.index(f"Attached to debug session for debugee 1 ({found[1].hostname})\n")
    assert outputs[attached + 1].startswith("> ")
    assert "step()" in outputs[attached + 1]
    assert outputs[attached + 2 : attached + 4] == ["\n", "(Pdb) "]
    assert "2" in outputs  # What `p number` wrote.
    assert "<last pdb output for debugee 1 follows>\n" in outputs
    assert "Error processing command: No debug session for rank 9 for actor debugee\n" in outputs
    assert outputs[-1] == "Quitting debug session...\n"


@pytest.mark.long
def test_the_server_listens_only_where_a_port_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Served(DebugController):
        @endpoint
        async def port(self) -> int:
            server = await self._server
            return int(server.sockets[0].getsockname()[1])

        @endpoint
        async def is_open(self) -> bool:
            return self._server.done()

    closed = get_or_spawn_controller("closed", Served).get()
    assert closed.is_open.call_one().get(timeout=20) is False
    monkeypatch.setenv("MONARCH_DEBUG_SERVER_PORT", "0")
    served = get_or_spawn_controller("served", Served).get()
    stepper = this_host().spawn_procs({"gpus": 1}).spawn("stepper", Stepper)
    answer = stepper.step.call_one(1)
    served.wait_pending_session.call_one().get(timeout=20)
    with socket.create_connection(("localhost", served.port.call_one().get(timeout=20))) as console:
        console.settimeout(20)
        file = console.makefile("rw")
        for line in ("attach stepper 0", "p 6 * 7", "c", "quit"):
            file.write(f"{line}\n")
        file.flush()
        said = file.read()
    assert "MONARCH DEBUGGER" in said
    assert "42" in said
    assert "Quitting debug session..." in said
    assert answer.get(timeout=20) == 2
    # Upstream's console of that port, and what it says where nobody listens.
    port = served.port.call_one().get(timeout=20)
    command = [sys.executable, "-m", "monarch.cli.main", "debug", "--port", str(port)]
    done = subprocess.run(
        command, input="list\nquit\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Quitting debug session..." in done.stdout
    served.stop().get(timeout=20)
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    with pytest.raises(JobError, match="nobody listens at localhost"):
        debug("localhost", port)


def test_the_public_door_and_its_surroundings() -> None:
    assert debug_controller().list.call_one(print_output=False).get(timeout=20) == []
    assert (_get_debug_server_host(), _get_debug_server_port()) == ("localhost", "27000")
    loader = get_or_spawn_controller("source_loader", SourceLoaderController).get()
    assert "Upstream's debugger" in loader.get_source.call_one(__file__).get(timeout=20)
