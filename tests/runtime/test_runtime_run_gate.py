"""Who may run a call of which generation."""

from __future__ import annotations

import threading

import pytest

from monarch.errors import MonarchError
from monarch.runtime.code_states import WorkspaceStates
from monarch.runtime.procs.spawn_gate import SpawnGate
from monarch.runtime.run_gate import RunGate
from monarch.wire.message import Call


def _call(generation: int, root: str = "client") -> Call:
    return Call(actor="a", method="step", rank=0, sender="s", generation=generation, root=root)


def test_a_call_of_newer_code_is_behind_us_only_in_our_own_tree() -> None:
    gate = RunGate("client")
    gate.generation = 4
    assert gate.is_behind(_call(5))
    assert not gate.is_behind(_call(4))
    assert not gate.is_behind(_call(3)), "old code cannot come back"
    assert not gate.is_behind(_call(5, "somebody else's client")), "who counts for himself"


def test_what_a_generation_sent_that_was_taken_back_may_run() -> None:
    gate = RunGate("client")
    gate.generation = 5
    gate.take_back(5, 4)
    assert gate.generation == 4
    assert not gate.is_behind(_call(5))
    assert gate.is_behind(_call(6))


def test_a_generation_that_changes_nothing_here_is_no_new_code() -> None:
    gate = RunGate("client")
    gate.begin_at(3)
    assert gate.code_generation == 3
    gate.switch(4, divides=False, changes=False)
    assert (gate.generation, gate.code_generation) == (4, 3)
    gate.switch(5, divides=False, changes=True)
    assert (gate.generation, gate.code_generation) == (5, 5)
    gate.take_back(5, 4)
    assert gate.code_generation <= 4


def _close(gate: SpawnGate, generation: int) -> None:
    closed = threading.Event()
    gate.close(generation, closed.set)
    assert closed.wait(20)


def test_a_closed_gate_holds_spawns_back_and_waits_for_those_inside() -> None:
    gate = SpawnGate()
    seen: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def spawn(name: str) -> None:
        with gate.passing():
            seen.append(name)
            inside.set()
            leave.wait(20)

    first = threading.Thread(target=spawn, args=("first",))
    first.start()
    assert inside.wait(20)
    closer = threading.Thread(target=lambda: (_close(gate, 5), seen.append("closed")))
    closer.start()
    assert seen == ["first"]
    leave.set()
    closer.join(20)
    first.join(20)
    assert seen == ["first", "closed"]
    second = threading.Thread(target=spawn, args=("second",))
    second.start()
    gate.open()
    second.join(20)
    assert seen[-1] == "second"
    held: list[str] = []
    gate = SpawnGate(patience_seconds=0.0)
    gate.on_held = lambda: held.append("somebody waits")
    _close(gate, 6)
    with pytest.raises(MonarchError, match="generation 6 of the workspace"), gate.passing():
        pass
    assert held == ["somebody waits"]


def test_the_last_push_to_any_host_of_a_mesh_is_meant_for_all_of_it() -> None:
    states = WorkspaceStates()
    assert states.wanted(["h0", "h1"]).digest == ""
    states.found("h0", 3, "d3")
    states.found("h1", 0, "empty")
    assert states.wanted(["h0", "h1"])[1:] == (3, "d3")
    states.pushed(["h1"], 1, "d1")
    assert states.wanted(["h0", "h1"])[1:] == (1, "d1"), "what is told counts less than a push"
    states.found("h1", 9, "d9")
    assert states.wanted(["h1"])[1:] == (1, "d1")
    assert states.wanted(["h0"])[1:] == (3, "d3"), "other hosts are another matter"
    assert states.having("d1") == ["h1"]
