"""The command `break`: breakpoints by file and line, on all ranks, also on those that start later.

The host agents remember them, so every console sees, and can clear, those of all consoles.
"""

from __future__ import annotations

import msgspec

from monarch.core.rank_sets import parse_set
from monarch.debugger.command_line import BreakOrder, Typed, parse_break
from monarch.debugger.screen import Screen
from monarch.debugger.visit import NotAnswered, SeenProc, Visit, chosen
from monarch.net.machine import user_name
from monarch.wire.message import BreakPlace
from monarch_sync.words import counted


class Breakpoints:
    """The command `break` of one console."""

    def __init__(self, visit: Visit, screen: Screen) -> None:
        self._visit = visit
        self._screen = screen

    def obey(self, typed: Typed) -> None:
        """Run ``break``, ``break FILE:LINE ...`` or ``break clear [NUMBER]``."""
        word, _, number = typed.text.partition(" ")
        if not typed.text:
            self._list()
        elif word == "clear":
            self._clear(number.strip())
        else:
            self._set(parse_break(typed.text))

    def _sent(self, change: BreakPlace | None = None) -> dict[int, BreakPlace]:
        """Return the breakpoints that the hosts remember, by number.

        If there is a ``change``, it is sent to the hosts first.
        """
        visit = self._visit
        request = change or BreakPlace(number=0, file="", line=0, condition="", is_gone=False)
        places: dict[int, BreakPlace] = {}
        answers = visit.ask_hosts(request)
        for answer in answers:
            places.update({place.number: place for place in answer.breaks})
        return dict(sorted(places.items()))

    def _list(self) -> None:
        places = self._sent()
        user = user_name()
        for number, place in places.items():
            by = f"  [{place.who}]" if place.who != user else ""
            text = f": {place.text}" if place.text else ""
            self._screen.write(f"{number}  {_told(place)}{text}{by}\n")
        if not places:
            self._screen.write("no breakpoint is set: break FILE:LINE sets one\n")

    def _set(self, order: BreakOrder) -> None:
        visit = self._visit
        file, line, condition, ranks = order
        parsed = parse_set(ranks)
        everybody = visit.procs()
        procs = chosen(everybody, parsed) if everybody else []
        number = max(self._sent(), default=0) + 1
        place = BreakPlace(
            number=number,
            file=file,
            line=line,
            condition=condition,
            is_gone=False,
            ranks=ranks,
            text="",
            who=user_name(),
        )
        answers = self._send(procs, place)
        text = next((text for text in answers if text), "")
        place = msgspec.structs.replace(place, text=text)
        self._sent(place)
        note = f": {text}" if text else ", where that file is imported"
        procs_named = counted(len(answers), "proc") if answers else "no proc that runs"
        self._screen.write(
            f"{number}  {_told(place)}, on {procs_named} and those that start later{note}\n"
        )

    def _clear(self, text: str) -> None:
        places = self._sent()
        numbers = [int(text)] if text.isdigit() else list(places)
        if not set(numbers) <= set(places) or (text and not text.isdigit()):
            raise NotAnswered(f"there is no breakpoint {text}")
        for number in numbers:
            gone = msgspec.structs.replace(places[number], is_gone=True)
            self._sent(gone)
            self._send(self._visit.procs(), gone)
        self._screen.write(f"{len(numbers)} taken away\n")

    def _send(self, procs: list[SeenProc], place: BreakPlace) -> list[str]:
        """Send the breakpoint to these procs; return the text of that line from each proc that
        armed it."""
        answers = self._visit.ask_many(procs, place)
        armed = [response.answer for response in answers.values() if not response.error]
        return [answer.text for answer in armed if answer.is_armed]


def _told(place: BreakPlace) -> str:
    condition = f" if {place.condition}" if place.condition else ""
    ranks = f" ranks {place.ranks}" if place.ranks != "all" else ""
    return f"{place.file}:{place.line}{condition}{ranks}"
