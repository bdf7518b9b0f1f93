"""The tables of the code switch: its parties, orders, votes and states, and what leads where.

It is a two-phase commit. The *coordinator* asks the *participants* to prepare; one vote of no keeps
all from it. Between the two phases stands a barrier: a *fence* in the order of each owner's
messages, and then a *halt* of all actors. Then the hosts show the new files, and the participants
patch their code. Only when all have done so may any of them run it (``GO``): to send the first
of these orders is the decision.

- Before the decision every vote of no, every loss of an owner and every interrupt leads back: first
  the files, while no code runs, and then the code. After it nothing does.
- When the author has died, an owner takes its place. It first inquires how far all owners are. Each
  obeys from then on neither the author nor an earlier successor, so what the owners say stays so.
  Where one of them has gone, the others go; where one was never halted, all go back; otherwise the
  hosts tell.
- A participant obeys one coordinator at a time; to others it is busy.
- No participant commits unless all have prepared and were halted. A dead one does not count.
- Presumed abort: an author that died before any host showed the files has changed nothing.
- A fence that holds a sender up while others have not come to it is lifted, and cast again.

An event that the tables do not have raises ``IllegalEvent``. Messages that arrive over the network
may be late or wrong, so the driver drops those there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar


class SwitchOrder(Enum):
    """The orders of a coordinator to participants, and (the last four) to the hosts."""

    PREPARE = "prepare"
    FENCE = "fence"
    LIFT = "lift"
    HALT = "halt"
    RESUME = "resume"
    PATCH = "patch"
    GO = "go"
    REVERT = "revert"
    INQUIRE = "inquire"
    SHOW_FILES = "show files"
    TAKE_BACK_FILES = "take files back"
    DROP_FILES = "drop files"
    INSPECT_FILES = "inspect files"


class Vote(Enum):
    """The answer to an order. A participant that is gone has no vote, and the switch goes on."""

    YES = "yes"
    LATE = "late"
    NO = "no"
    GONE = "gone"
    SOME = "some"  # Of the hosts: not all of them show the files.
    WENT = "went"  # Of an owner that is asked how far it is: it runs the new code.


class Said(Enum):
    """Events of a coordinator: the sum of all answers to an order, and whatever else happens."""

    BEGIN = "begin"
    RECOVER = "the author has died"
    ALL = "all: yes"
    LATE = "some: late"
    NO = "some: no"
    SOME = "some show the files"
    NONE = "nobody shows the files"
    WENT = "an owner has gone"
    UNCHANGED = "nothing is new"
    LOST = "an owner is lost, or Ctrl-C"
    WOKE = "the pause is over"


class CoordinatorState(Enum):
    """How far a coordinator is."""

    IDLE = "idle"
    PREPARING = "preparing"
    FENCING = "fencing"
    LIFTING = "lifting"
    PAUSING = "pausing"
    HALTING = "halting"
    SHOWING = "showing files"
    PATCHING = "patching"
    RELEASING = "releasing"
    UNDOING = "undoing files"
    REVERTING = "reverting"
    INQUIRING = "inquiring"
    INSPECTING = "inspecting files"
    DROPPING = "dropping files"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ParticipantState(Enum):
    """How far a participant is."""

    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    FENCING = "fencing"
    FENCED = "fenced"
    LIFTED = "lifted"
    HALTING = "halting"
    HALTED = "halted"
    PATCHING = "patching"
    PATCHED = "patched"
    REVERTING = "reverting"


# Short, so that a row of a table fits in a line.
_C, _P, _O = CoordinatorState, ParticipantState, SwitchOrder

_BACK = {Said.NO: _C.UNDOING, Said.LOST: _C.UNDOING}

COORDINATOR: Mapping[CoordinatorState, Mapping[Said, CoordinatorState]] = {
    _C.IDLE: {Said.BEGIN: _C.PREPARING, Said.RECOVER: _C.INQUIRING},
    _C.PREPARING: {Said.ALL: _C.FENCING, Said.UNCHANGED: _C.REVERTING, **_BACK},
    _C.FENCING: {Said.ALL: _C.HALTING, Said.LATE: _C.LIFTING, **_BACK},
    _C.LIFTING: {Said.ALL: _C.PAUSING, Said.LATE: _C.FENCING, **_BACK},
    _C.PAUSING: {Said.WOKE: _C.FENCING, **_BACK},
    _C.HALTING: {Said.ALL: _C.SHOWING, Said.LATE: _C.LIFTING, **_BACK},
    _C.SHOWING: {Said.ALL: _C.PATCHING, **_BACK},
    _C.PATCHING: {Said.ALL: _C.RELEASING, **_BACK},
    _C.RELEASING: {Said.ALL: _C.COMMITTED, Said.LOST: _C.UNDOING},
    _C.UNDOING: {Said.ALL: _C.REVERTING, Said.LOST: _C.UNDOING},
    _C.REVERTING: {Said.ALL: _C.ABORTED, Said.LOST: _C.REVERTING},
    _C.INQUIRING: {
        Said.WENT: _C.RELEASING, Said.ALL: _C.INSPECTING, Said.NONE: _C.DROPPING,
    },
    _C.INSPECTING: {
        Said.ALL: _C.PATCHING, Said.SOME: _C.SHOWING, Said.NONE: _C.DROPPING,
    },
    _C.DROPPING: {
        Said.ALL: _C.PATCHING, Said.SOME: _C.UNDOING, Said.NONE: _C.REVERTING,
    },
    _C.COMMITTED: {},
    _C.ABORTED: {},
}  # fmt: skip
"""From where a coordinator goes where, when all have answered or something else happens."""

_ANEW: Mapping[SwitchOrder | Said, ParticipantState] = {
    _O.PREPARE: _P.PREPARING,
    _O.REVERT: _P.REVERTING,
}

PARTICIPANT: Mapping[ParticipantState, Mapping[SwitchOrder | Said, ParticipantState]] = {
    _P.IDLE: {
        **_ANEW, _O.LIFT: _P.IDLE, _O.RESUME: _P.IDLE, _O.GO: _P.IDLE,
    },
    _P.PREPARING: {Said.ALL: _P.PREPARED, **_ANEW},
    _P.PREPARED: {_O.FENCE: _P.FENCING, _O.LIFT: _P.PREPARED, **_ANEW},
    _P.FENCING: {Said.ALL: _P.FENCED, _O.LIFT: _P.LIFTED, **_ANEW},
    _P.LIFTED: {_O.FENCE: _P.FENCING, _O.LIFT: _P.LIFTED, **_ANEW},
    _P.FENCED: {
        _O.HALT: _P.HALTING, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.HALTING: {
        Said.ALL: _P.HALTED, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.HALTED: {
        _O.PATCH: _P.PATCHING, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.PATCHING: {Said.ALL: _P.PATCHED, _O.PATCH: _P.PATCHING, **_ANEW},
    _P.PATCHED: {
        _O.GO: _P.IDLE, _O.PATCH: _P.PATCHED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.REVERTING: {Said.ALL: _P.IDLE, _O.REVERT: _P.REVERTING},
}  # fmt: skip
"""From where a participant goes where: when it is ordered to, and when it and its procs have done
as they were told. After ``GO`` in ``PATCHED`` it runs the new code, after ``REVERT`` the old."""

MAY_BE_SHOWN = (_P.HALTING, _P.HALTED, _P.PATCHING, _P.PATCHED)
"""In these, hosts may show the new files already."""

_S = TypeVar("_S", CoordinatorState, ParticipantState)
_E = TypeVar("_E", Said, "SwitchOrder | Said")


class IllegalEvent(Exception):
    """This party does not expect this in the state that it is in."""


def successor_of(author: str, term: int = 0) -> str:
    """The name in which an owner orders that takes the place of an author that has died.

    ``term`` is greater for one that comes later; 0 is the name before any is known."""
    return f"{author_of(author)}{_GONE}{term}"


def author_of(name: str) -> str:
    """The author in whose place this one orders, or that it is."""
    return name.partition(_GONE)[0]


def term_of(name: str) -> int:
    """Which successor this is; -1 for an author itself."""
    return int(name.partition(_GONE)[2] or -1)


_GONE = " (gone), term "


def next_of(table: Mapping[_S, Mapping[_E, _S]], state: _S, event: _E) -> _S:
    """The state that an event leads to. Raises ``IllegalEvent``."""
    following = table[state].get(event)
    if following is None:
        raise IllegalEvent(f"a party that is {state.value!r} has no {event.value!r}")
    return following


def as_markdown() -> str:
    """Both tables, for the documentation."""
    parts = []
    tables: tuple[tuple[str, Mapping[Any, Mapping[Any, Any]]], ...] = (
        ("coordinator", COORDINATOR), ("participant", PARTICIPANT),
    )  # fmt: skip
    for name, table in tables:
        parts.append(f"| {name} is | what happens | it is then |\n| --- | --- | --- |")
        for state, row in table.items():
            by_next: dict[Enum, list[str]] = {}
            for event, following in row.items():
                kind = f"*{event.value}*" if isinstance(event, SwitchOrder) else event.value
                by_next.setdefault(following, []).append(kind)
            parts += [
                f"| {state.value} | {'; '.join(events)} | {following.value} |"
                for following, events in by_next.items()
            ] or [f"| {state.value} | | |"]
        parts.append("")
    return "\n".join(parts)
