"""The tables of the code switch: its parties, orders, votes and states, and all transitions.

The orders, and what each means, are in ``monarch.wire.message.generations``.

It is a two-phase commit. The *author* of a push asks the *owners* of procs, which are programs, to
prepare; if one votes no, none switches. Then it tells each owner to switch. The owner is the
*coordinator* of its own process and of its procs, the *participants*: it sends a *fence* among its
messages, and then *halts* all actors. Its hosts show the new files, and the participants patch
their code. Only when all have done so may any of them run it (``GO``): to send the first of these
orders is the decision.

- Before the decision, every vote of no and every interrupt makes all revert: first the files, while
  no code runs, and then the code. After it, nothing does.
- No process succeeds a coordinator that has died: its procs end with it. Its author is told, and
  has the hosts restore their files.
- An owner that is prepared reverts when its author dies. An owner that was told to switch goes on
  alone.
- A participant obeys one coordinator at a time; to others it is busy.
- No participant commits unless all have prepared and were halted. A dead one does not count.
- A fence that delays a sender while others have not reached it is lifted, and sent again.

An event that the tables do not have raises ``IllegalEvent``. Messages from the network may be late
or wrong, so the driver drops those there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from monarch.wire.message import SwitchOrder


class Vote(Enum):
    """The answer to an order. A participant that has ended has the vote ``GONE``: the switch goes
    on.
    """

    YES = "yes"
    LATE = "late"
    NO = "no"
    GONE = "gone"


class SwitchEvent(Enum):
    """Events of the state machines: the combined answers to an order, and everything else that
    happens."""

    BEGIN = "begin"
    ALL = "all: yes"
    LATE = "some: late"
    NO = "some: no"
    UNCHANGED = "nothing is new"
    LOST = "an owner is lost, or Ctrl-C"
    WOKE = "the pause is over"


class ProposalState(Enum):
    """The states of an author's push to its owners."""

    IDLE = "idle"
    PREPARING = "preparing"
    SHOWING = "showing files where nothing runs"
    SWITCHING = "switching"
    CALLING_OFF = "calling off"
    SWITCHED = "switched"
    CALLED_OFF = "called off"


class CoordinatorState(Enum):
    """The states of a coordinator."""

    IDLE = "idle"
    FENCING = "fencing"
    LIFTING = "lifting"
    PAUSING = "pausing"
    HALTING = "halting"
    SHOWING = "showing files"
    PATCHING = "patching"
    RELEASING = "releasing"
    UNDOING = "undoing files"
    REVERTING = "reverting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ParticipantState(Enum):
    """The states of a participant."""

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
_A, _C, _P = ProposalState, CoordinatorState, ParticipantState
_E, _O = SwitchEvent, SwitchOrder

_OFF = {_E.NO: _A.CALLING_OFF, _E.LOST: _A.CALLING_OFF}
_BACK = {_E.NO: _C.UNDOING, _E.LOST: _C.UNDOING}

PROPOSAL: Mapping[ProposalState, Mapping[SwitchEvent, ProposalState]] = {
    _A.IDLE: {_E.BEGIN: _A.PREPARING},
    _A.PREPARING: {_E.ALL: _A.SHOWING, _E.UNCHANGED: _A.CALLING_OFF, **_OFF},
    _A.SHOWING: {_E.ALL: _A.SWITCHING, **_OFF},
    _A.SWITCHING: {_E.ALL: _A.SWITCHED, **_OFF},
    _A.CALLING_OFF: {_E.ALL: _A.CALLED_OFF},
    _A.SWITCHED: {},
    _A.CALLED_OFF: {},
}
"""The next state of an author, by its state and by what happens."""

COORDINATOR: Mapping[CoordinatorState, Mapping[SwitchEvent, CoordinatorState]] = {
    _C.IDLE: {_E.BEGIN: _C.FENCING},
    _C.FENCING: {_E.ALL: _C.HALTING, _E.LATE: _C.LIFTING, **_BACK},
    _C.LIFTING: {_E.ALL: _C.PAUSING, _E.LATE: _C.FENCING, **_BACK},
    _C.PAUSING: {_E.WOKE: _C.FENCING, **_BACK},
    _C.HALTING: {_E.ALL: _C.SHOWING, _E.LATE: _C.LIFTING, **_BACK},
    _C.SHOWING: {_E.ALL: _C.PATCHING, **_BACK},
    _C.PATCHING: {_E.ALL: _C.RELEASING, **_BACK},
    _C.RELEASING: {_E.ALL: _C.COMMITTED, _E.LOST: _C.UNDOING},
    _C.UNDOING: {_E.ALL: _C.REVERTING},
    _C.REVERTING: {_E.ALL: _C.ABORTED},
    _C.COMMITTED: {},
    _C.ABORTED: {},
}
"""The next state of a coordinator, by its state and by what happens."""

_ANEW: Mapping[SwitchOrder | SwitchEvent, ParticipantState] = {
    _O.PREPARE: _P.PREPARING,
    _O.REVERT: _P.REVERTING,
}

PARTICIPANT: Mapping[ParticipantState, Mapping[SwitchOrder | SwitchEvent, ParticipantState]] = {
    _P.IDLE: {_O.PREPARE: _P.PREPARING},
    _P.PREPARING: {_E.ALL: _P.PREPARED, **_ANEW},
    _P.PREPARED: {
        _O.SWITCH: _P.PREPARED, _O.FENCE: _P.FENCING, _O.LIFT: _P.PREPARED, **_ANEW,
    },
    _P.FENCING: {_E.ALL: _P.FENCED, _O.LIFT: _P.LIFTED, **_ANEW},
    _P.LIFTED: {_O.FENCE: _P.FENCING, _O.LIFT: _P.LIFTED, **_ANEW},
    _P.FENCED: {
        _O.HALT: _P.HALTING, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.HALTING: {
        _E.ALL: _P.HALTED, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.HALTED: {
        _O.PATCH: _P.PATCHING, _O.LIFT: _P.LIFTED, _O.RESUME: _P.FENCED, **_ANEW,
    },
    _P.PATCHING: {_E.ALL: _P.PATCHED, **_ANEW},
    _P.PATCHED: {_O.GO: _P.IDLE, _O.RESUME: _P.FENCED, **_ANEW},
    _P.REVERTING: {_E.ALL: _P.IDLE, _O.REVERT: _P.REVERTING},
}  # fmt: skip
"""The next state of a participant, by its state and by the order that it gets; or when it and its
procs have carried out an order. After ``GO`` it runs the new code, after ``REVERT`` the old."""

_StateT = TypeVar("_StateT", ProposalState, CoordinatorState, ParticipantState)
_EventT = TypeVar("_EventT", SwitchEvent, "SwitchOrder | SwitchEvent")


class IllegalEvent(Exception):
    """A party does not expect this event in its present state."""


def next_of(
    table: Mapping[_StateT, Mapping[_EventT, _StateT]], state: _StateT, event: _EventT
) -> _StateT:
    """Return the state that an event leads to.

    Raises ``IllegalEvent`` if the event cannot happen in ``state``.
    """
    following = table[state].get(event)
    if following is None:
        raise IllegalEvent(f"a party that is {state.value!r} has no {event.value!r}")
    return following
