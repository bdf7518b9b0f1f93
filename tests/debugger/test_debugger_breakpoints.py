"""Calls that are held at ``breakpoint()``, and the console that opens them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from typing import Any

import msgspec
import psutil
import pytest

import monarch.actor
from monarch.actor import ActorError, ProcMesh, SupervisionError, this_host
from monarch.config import configured
from monarch.debugger.console import holds_table
from monarch.runtime.client_agent import client
from monarch.runtime.debugger.break_places import moved_line
from tests.debugger.held_actors import AsyncStepper, Stepper
from tests.debugger.typist import Typist, console, type_into, visit_self, wait_for_holds
from tests.support import Printed, wait_for


def test_a_call_stands_until_it_is_continued(steppers: Any) -> None:
    answer = steppers.slice(gpus=2).step.call_one(1)
    (hold,) = wait_for_holds(1)
    assert (hold.actor, hold.rank, hold.method, hold.reason) == (
        "stepper", 2, "step", "breakpoint()",
    )  # fmt: skip
    shown = console("list", "attach stepper 2", "p number", "n", "p number", "p self.loss", "c")
    assert "| stepper    |    2 | {'gpus': 2} |" in shown
    assert "held_actors.py" in shown
    assert "(Pdb) p number\n1\n" in shown
    assert "(Pdb) n\n> " in shown
    assert "(Pdb) p number\n2\n" in shown
    assert "(Pdb) p self.loss\n0.5\n" in shown
    assert "Detached from debug session for stepper 2" in shown
    assert answer.get(timeout=60) == 2
    wait_for_holds(0)


def test_an_async_call_stands_and_goes_on(procs: ProcMesh) -> None:
    answer = procs.spawn("stepper", AsyncStepper).slice(gpus=0).step.call_one(4)
    wait_for_holds(1)
    shown = console("attach stepper 0", "!number = 40", "n", "n", "p number", "c")
    assert "(Pdb) p number\n41\n" in shown
    assert answer.get(timeout=60) == 41


def test_a_nested_call_shows_the_users_frames_alone(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).nested.call_one(1)
    wait_for_holds(1)
    shown = console("attach stepper 0", "w", "up", "p number", "c")
    assert "nested()" in shown
    assert "deeper()" in shown
    assert "monarch/runtime" not in shown
    assert answer.get(timeout=60) == 111


def test_the_last_line_of_a_function_stands_at_its_return(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).last_line.call_one()
    wait_for_holds(1)
    console("attach stepper 0", "c")
    assert answer.get(timeout=60) is None


def test_several_actors_and_ranks_are_listed_and_all_continue(
    procs: ProcMesh, steppers: Any
) -> None:
    others = procs.spawn("other", Stepper)
    answers = [steppers.odd_stands.call(), others.odd_stands.call()]
    wait_for_holds(4)
    shown = console("list", "continue")
    assert [line.split("|")[1:3] for line in shown.splitlines() if "{'gpus'" in line] == [
        [" other      ", "    1 "],
        [" other      ", "    3 "],
        [" stepper    ", "    1 "],
        [" stepper    ", "    3 "],
    ]
    assert [list(a.get(timeout=60).values()) for a in answers] == [[0, 5, 2, 7]] * 2


def test_a_call_that_has_ended_meanwhile_keeps_no_other_standing(
    steppers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = steppers.odd_stands.call()
    first, _ = wait_for_holds(2)
    visit, typist = visit_self(), Typist(["continue"])
    over, standing = msgspec.structs.replace(first, id="of a call that is over"), visit.holds
    monkeypatch.setattr(visit, "holds", lambda: [over, *standing()])
    type_into(visit, typist)
    assert "Error processing command: stepper 1: the call has ended" in typist.shown_text
    assert list(answer.get(timeout=60).values()) == [0, 5, 2, 7]


def test_a_line_is_cast_to_several_ranks_and_equal_answers_are_together(steppers: Any) -> None:
    answer = steppers.odd_stands.call()
    wait_for_holds(2)
    shown = console(
        "cast stepper ranks(1,3) p type(self).__name__",
        "cast stepper ranks(gpus=1:) n",
        "cast all !rank = 50",
        "diff rank + current_rank().rank",
        "continue",
    )
    assert "stepper ranks 1,3: 'Stepper'" in shown
    assert "    rank 1      51\n    rank 3      53\n" in shown
    assert list(answer.get(timeout=60).values()) == [0, 50, 2, 50]


def test_together_sends_each_line_to_all(steppers: Any) -> None:
    answer = steppers.odd_stands.call()
    wait_for_holds(2)
    shown = console("together", "p rank", "c", "alone", "quit")
    assert "each line goes to stepper 1,3" in shown
    assert "stepper rank 1: 1\nstepper rank 3: 3\n" in shown
    assert list(answer.get(timeout=60).values()) == [0, 5, 2, 7]


def test_what_is_typed_wrong_says_so_in_a_line(steppers: Any) -> None:
    answer = steppers.odd_stands.call()
    wait_for_holds(2)
    shown = console(
        "attach nobody 0", "attach stepper 2", "cast stepper ranks(1,) n",
        "cast stepper ranks(7) n",
        "cast stepper ranks(hosts=1) n", "attach stepper", "frobnicate", "stop", "",
        "continue",
    )  # fmt: skip
    lines = [line for line in shown.splitlines() if line.startswith("Error")]
    assert lines[0] == "Error processing command: No debug sessions for actor nobody"
    assert lines[1] == ("Error processing command: No debug session for rank 2 for actor stepper")
    assert lines[2].startswith("Error parsing input: '1,' names no ranks")
    assert "no call is held on these ranks, but on stepper 1,3" in lines[3]
    assert "stepper has no dimension 'hosts'" in lines[4]
    assert lines[5] == "Error parsing input: attach NAME RANK, as in `attach trainer 3`"
    assert "no such command: 'frobnicate'" in lines[6]
    assert len(lines) == 8
    assert list(answer.get(timeout=60).values()) == [0, 5, 2, 7]


def test_names_in_the_held_frame_are_completed(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).step.call_one(1)
    wait_for_holds(1)
    typist = Typist(["attach stepper 0", "p self.lo\t", "c"])
    type_into(visit_self(), typist)
    assert "self.loss" in typist.completions
    assert answer.get(timeout=60) == 2


def test_two_consoles_see_each_others_lines(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).step.call_one(1)
    (hold,) = wait_for_holds(1)
    first, gate = visit_self(), threading.Event()
    first.who = "anna"

    class Waits(Typist):
        def read(self, prompt: str, complete: Any) -> str:
            if len(self.lines) == 1:
                gate.set()
                wait_for(lambda: "[ben] p 40 + 2" in self.shown_text)
                wait_for(lambda: "\n42\n" in self.shown_text)
            return super().read(prompt, complete)

    anna = Waits(["attach stepper 0", "p 1 + 1", "c"])
    console_of_anna = threading.Thread(target=type_into, args=(first, anna))
    console_of_anna.start()
    assert gate.wait(60)
    second = visit_self()
    second.who = "ben"
    type_into(second, Typist(["attach stepper 0", "p 40 + 2", "detach"]))
    console_of_anna.join(60)
    assert "(Pdb) p 1 + 1\n2\n" in anna.shown_text
    assert answer.get(timeout=60) == 2
    assert hold.rank == 0


def test_an_error_after_a_breakpoint_stands_and_then_goes_to_the_caller(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).then_fails.call_one()
    wait_for_holds(1)
    shown = console("attach stepper 0", "c", "p self.finally_ran", "c")
    assert "ZeroDivisionError" in shown
    with pytest.raises(ActorError, match="ZeroDivisionError"):
        answer.get(timeout=60)


def test_a_breakpoint_is_reached_while_a_line_has_one_too(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).twice.call_one(1)
    wait_for_holds(1)
    shown = console("attach stepper 0", "b fail", "c", "p number", "n", "p number", "c")
    assert "(Pdb) p number\n2\n" in shown
    assert "(Pdb) p number\n3\n" in shown
    assert "bdb.py" not in shown
    assert answer.get(timeout=60) == 3


def test_an_error_stands_where_it_was_raised_while_a_line_has_a_breakpoint(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).then_fails.call_one()
    wait_for_holds(1)
    shown = console("attach stepper 0", "b fail", "c", "p self.loss", "c")
    assert "ZeroDivisionError" in shown
    assert "(Pdb) p self.loss\n0.5\n" in shown
    with pytest.raises(ActorError, match="ZeroDivisionError"):
        answer.get(timeout=60)


def test_quit_ends_the_call_with_an_error_and_the_actor_lives(steppers: Any) -> None:
    one = steppers.slice(gpus=0)
    answer = one.step.call_one(1)
    wait_for_holds(1)
    console("attach stepper 0", "q")
    with pytest.raises(ActorError, match="ended in the debugger"):
        answer.get(timeout=60)
    assert one.echo.call_one(3).get(timeout=60) == 3


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the client has said of held calls."""
    # A client that has asked who it is marks its records with that.
    messages = (message.removeprefix("[actor=<root>] ") for message in caplog.messages)
    return [message for message in messages if message.startswith("stepper ")]


def test_the_client_is_told_once_for_all_ranks(
    steppers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long one rank comes after the other: it is told when the test says so.
    monkeypatch.setattr(client().holds, "together_seconds", 3600.0)
    with caplog.at_level(logging.WARNING):
        answer = steppers.odd_stands.call()
        wait_for_holds(2)
        assert told(caplog) == []
        client().node.loop.run_on_loop(client().holds._tell_new)
        console("cast all n", "continue")
        answer.get(timeout=60)
        wait_for(lambda: any("time limits count again" in message for message in caplog.messages))
    (sentence,) = told(caplog)
    assert sentence.startswith("stepper 1,3 are held at breakpoint(), held_actors.py:")
    assert sentence.endswith("and time limits are paused; `monarch debug` opens it.")


def test_the_client_is_told_of_some_ranks_though_others_do_not_come(
    steppers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        answer = steppers.slice(gpus=2).step.call_one(1)
        wait_for(lambda: told(caplog), what="what the client is told")
        console("continue")
        assert answer.get(timeout=60) == 2
    assert told(caplog)[0].startswith("stepper 2 is held at breakpoint(), held_actors.py:")


def test_nobody_comes_and_the_call_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Printed(monkeypatch)
    with configured(breakpoint="0.2"):
        steppers = this_host().spawn_procs({"gpus": 1}).spawn("stepper", Stepper)
        assert steppers.step.call_one(1).get(timeout=60) == 2
    told = r"held at held_actors.py:\d+ for 0.2 s, and nobody came: it goes on \(MONARCH_BREAKPOINT"
    printed.wait_for(told, 2)


@pytest.mark.parametrize("how", ["setting", "PYTHONBREAKPOINT"])
def test_breakpoints_can_be_off(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with configured(breakpoint="off" if how == "setting" else "wait"):
        if how == "PYTHONBREAKPOINT":
            monkeypatch.setenv("PYTHONBREAKPOINT", "0")
        steppers = this_host().spawn_procs({"gpus": 1}).spawn("stepper", Stepper)
        assert steppers.step.call_one(1).get(timeout=60) == 2


def test_a_rank_that_is_killed_while_it_stands_is_gone_from_the_list(
    steppers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda fault: None)
    answer = steppers.slice(gpus=1).step.call_one(1)
    (hold,) = wait_for_holds(1)

    class Kills(Typist):
        def read(self, prompt: str, complete: Any) -> str:
            if prompt == "(Pdb) ":
                os.kill(hold.pid, signal.SIGKILL)
                wait_for(lambda: not visit_self().holds())
            return super().read(prompt, complete)

    typist = Kills(["attach stepper 1", "n"])
    type_into(visit_self(), typist)
    with pytest.raises(SupervisionError):
        answer.get(timeout=60)
    assert "Detached from debug session for stepper 1" in typist.shown_text
    died = r"stepper 1 ended \d+ s ago, while it was held at held_actors.py:\d+ in Stepper.step: "
    assert re.search(f"{died}.*SIGKILL", typist.shown_text)
    assert re.search(f"{died}.*SIGKILL", console("list"))
    assert re.search(f"Error processing command: {died}", console("attach stepper 1"))


def test_a_mesh_with_a_call_that_stands_stops_in_good_time(procs: ProcMesh, steppers: Any) -> None:
    answer = steppers.slice(gpus=1).step.call_one(1)
    wait_for_holds(1)
    procs.stop().get(timeout=60)
    with pytest.raises((SupervisionError, ActorError)):
        answer.get(timeout=60)


def test_no_port_is_opened(steppers: Any) -> None:
    def listening() -> set[Any]:
        me = psutil.Process()
        found = set()
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # It has ended meanwhile.
                found.update(process.net_connections("inet"))
        return {one.laddr for one in found if one.status == psutil.CONN_LISTEN}

    before = listening()
    answer = steppers.slice(gpus=0).step.call_one(1)
    wait_for_holds(1)
    assert listening() == before
    console("attach stepper 0", "n", "c")
    assert answer.get(timeout=60) == 2
    assert listening() == before


def test_the_list_has_fewer_columns_where_the_terminal_is_narrow(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).step.call_one(1)
    holds = wait_for_holds(1)
    wide = holds_table(holds).splitlines()
    assert holds_table(holds, len(wide[0])).splitlines() == wide
    narrow = holds_table(holds, len(wide[0]) - 1).splitlines()
    assert [word for word in ("Coords", "Hostname") if word in narrow[1]] == ["Coords"]
    for table in (narrow, holds_table(holds, 20).splitlines()):
        assert len(table[0]) < len(wide[0])
        assert "held_actors.step" in table[3]
    console("continue")
    assert answer.get(timeout=60) == 2


def test_a_line_is_found_again_after_an_edit() -> None:
    before = ["a", "b", "c", "d"]
    assert moved_line(before, ["new", "new2", *before], 3) == 5
    assert moved_line(before, before[1:], 3) == 2
    assert moved_line(before, ["a", "b", "changed", "d"], 3) == 3
    assert moved_line(before, ["a", "d"], 3) is None
    assert moved_line(before, before, 9) is None
