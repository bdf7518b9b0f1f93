"""A console without a terminal, in the test's own process, whose lines are given before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from monarch.debugger.console import Console
from monarch.debugger.screen import Complete
from monarch.debugger.visit import Visit
from monarch.runtime.client_agent import client
from monarch.wire.hold import HoldNote
from tests.debugger import held_actors
from tests.support import wait_for

# Of consoles in tests: none is about how long a rank may take to answer, but where it says so.
SECONDS = 60.0


class Typist:
    """Types ``lines`` one by one, and keeps what is shown."""

    is_terminal = False
    width = None

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        self.shown_text = ""
        self.completions: list[str] = []
        self._lock = threading.Lock()

    def read(self, prompt: str, complete: Complete) -> str:
        self.write(prompt)
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        while line.endswith("\t"):
            self.completions = sorted(complete(line[:-1]))
            line = self.lines.pop(0)
        self.write(f"{line}\n")
        return line

    def write(self, text: str) -> None:
        with self._lock:
            self.shown_text += text

    def interrupt(self) -> None:
        """Nothing is read for long."""

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield


def visit_self(seconds: float = SECONDS) -> Visit:
    """The view that a console gets of the program that the test is; it waits so long for the
    answers of ranks."""
    agent = client()
    visit = Visit(agent.node, lambda: {"this program": agent.node.address}, seconds, SECONDS)
    visit.names_seconds = SECONDS
    return visit


def type_into(visit: Visit, typist: Typist) -> None:
    """Have its lines typed into a console."""
    Console(visit, typist, SECONDS).run()


def console(*lines: str, seconds: float = SECONDS) -> str:
    """Returns the output of a console in which these lines are typed."""
    typist = Typist(lines)
    type_into(visit_self(seconds), typist)
    return typist.shown_text


def wait_for_holds(number: int, but: Collection[HoldNote] = ()) -> list[HoldNote]:
    """The calls that stand, once there are so many, ``but`` those that are on their way to their
    end: a call ends before everybody has heard of it."""
    visit, over = visit_self(), {hold.id for hold in but}

    def standing() -> list[HoldNote]:
        found = [hold for hold in visit.holds() if hold.is_waiting and hold.id not in over]
        return found if len(found) == number else []

    if number:
        return wait_for(standing, what=f"{number} calls that stand")
    wait_for(lambda: not visit.holds(), what="no call that stands")
    return []


def line_of(text: str) -> int:
    """The number of the line of ``held_actors.py`` in which ``text`` stands first."""
    source = Path(held_actors.__file__).read_text()
    return source[: source.index(text)].count("\n") + 1
