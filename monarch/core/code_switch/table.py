"""The tables of the code switch: its parties, orders, votes and states, and what leads where.

It is a two-phase commit. The *coordinator* asks the *participants* to prepare; who votes no keeps
all from it. Between the two phases stands a barrier: a *fence* in the order of each owner's
messages, and then a *halt* of all actors. Then the hosts show the new files, and the participants
patch their code. Only when all have done so may anybody run it (``GO``): the first answer to that
is the decision.

- Before the decision every vote of no, every loss of an owner and every interrupt leads back:
  first the files, while nobody runs anything, and then the code. After it nothing does.
- A participant obeys one coordinator at a time; to others it is busy.
- Nobody commits unless all have prepared and were halted. Who has died does not count.
- Presumed abort: an author that died before any host showed the files has changed nothing.
- A fence that holds somebody up while others have not come to it is lifted, and cast again.

An event that the tables do not have raises ``IllegalEvent``. What arrives over the network may be
late or wrong, so the driver drops that there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar


class Order(Enum):
    """What a coordinator asks of participants, and (the last four) of the hosts."""

    PREPARE = "prepare"
    FENCE = "fence"
    LIFT = "lift"
    HALT = "halt"
    RESUME = "resume"
    PATCH = "patch"
    GO = "go"
    REVERT = "revert"
    SHOW_FILES = "show files"
    TAKE_BACK_FILES = "take files back"
    DROP_FILES = "drop files"
    INSPECT_FILES = "inspect files"


class Vote(Enum):
    """The answer to an order. Who is gone has no vote, and keeps nobody."""

    YES = "yes"
    LATE = "late"
    NO = "no"
    GONE = "gone"
    SOME = "some"  # Of the hosts: not all of them show the files.


class Said(Enum):
    """What all answers to an order come to, and what else happens to a coordinator."""

    BEGIN = "begin"
    RECOVER = "the author has died"
    ALL = "all: yes"
    LATE = "some: late"
    NO = "some: no"
    SOME = "some show the files"
    NONE = "nobody shows the files"
    UNCHANGED = "nothing is new"
    LOST = "an owner is lost, or Ctrl-C"
    WOKE = "the pause is over"


class Stage(Enum):
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
    INSPECTING = "inspecting files"
    DROPPING = "dropping files"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Phase(Enum):
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


_BACK = {Said.NO: Stage.UNDOING, Said.LOST: Stage.UNDOING}

COORDINATOR: Mapping[Stage, Mapping[Said, Stage]] = {
    Stage.IDLE: {Said.BEGIN: Stage.PREPARING, Said.RECOVER: Stage.INSPECTING},
    Stage.PREPARING: {Said.ALL: Stage.FENCING, Said.UNCHANGED: Stage.REVERTING, **_BACK},
    Stage.FENCING: {Said.ALL: Stage.HALTING, Said.LATE: Stage.LIFTING, **_BACK},
    Stage.LIFTING: {Said.ALL: Stage.PAUSING, Said.LATE: Stage.FENCING, **_BACK},
    Stage.PAUSING: {Said.WOKE: Stage.FENCING, **_BACK},
    Stage.HALTING: {Said.ALL: Stage.SHOWING, Said.LATE: Stage.LIFTING, **_BACK},
    Stage.SHOWING: {Said.ALL: Stage.PATCHING, **_BACK},
    Stage.PATCHING: {Said.ALL: Stage.RELEASING, **_BACK},
    Stage.RELEASING: {Said.ALL: Stage.COMMITTED, Said.LOST: Stage.UNDOING},
    Stage.UNDOING: {Said.ALL: Stage.REVERTING, Said.LOST: Stage.UNDOING},
    Stage.REVERTING: {Said.ALL: Stage.ABORTED, Said.LOST: Stage.REVERTING},
    Stage.INSPECTING: {
        Said.ALL: Stage.PATCHING, Said.SOME: Stage.SHOWING, Said.NONE: Stage.DROPPING,
    },
    Stage.DROPPING: {
        Said.ALL: Stage.PATCHING, Said.SOME: Stage.UNDOING, Said.NONE: Stage.REVERTING,
    },
    Stage.COMMITTED: {},
    Stage.ABORTED: {},
}  # fmt: skip
"""From where a coordinator goes where, when all have answered or something else happens."""

_ANEW: Mapping[Order | Said, Phase] = {
    Order.PREPARE: Phase.PREPARING,
    Order.REVERT: Phase.REVERTING,
}

PARTICIPANT: Mapping[Phase, Mapping[Order | Said, Phase]] = {
    Phase.IDLE: {
        **_ANEW, Order.LIFT: Phase.IDLE, Order.RESUME: Phase.IDLE, Order.GO: Phase.IDLE,
    },
    Phase.PREPARING: {Said.ALL: Phase.PREPARED, **_ANEW},
    Phase.PREPARED: {Order.FENCE: Phase.FENCING, Order.LIFT: Phase.PREPARED, **_ANEW},
    Phase.FENCING: {Said.ALL: Phase.FENCED, Order.LIFT: Phase.LIFTED, **_ANEW},
    Phase.LIFTED: {Order.FENCE: Phase.FENCING, Order.LIFT: Phase.LIFTED, **_ANEW},
    Phase.FENCED: {
        Order.HALT: Phase.HALTING, Order.LIFT: Phase.LIFTED, Order.RESUME: Phase.FENCED, **_ANEW,
    },
    Phase.HALTING: {
        Said.ALL: Phase.HALTED, Order.LIFT: Phase.LIFTED, Order.RESUME: Phase.FENCED, **_ANEW,
    },
    Phase.HALTED: {
        Order.PATCH: Phase.PATCHING, Order.LIFT: Phase.LIFTED, Order.RESUME: Phase.FENCED, **_ANEW,
    },
    Phase.PATCHING: {Said.ALL: Phase.PATCHED, Order.PATCH: Phase.PATCHING, **_ANEW},
    Phase.PATCHED: {
        Order.GO: Phase.IDLE, Order.PATCH: Phase.PATCHING, Order.RESUME: Phase.FENCED, **_ANEW,
    },
    Phase.REVERTING: {Said.ALL: Phase.IDLE, Order.REVERT: Phase.REVERTING},
}  # fmt: skip
"""From where a participant goes where: when it is ordered to, and when it and its procs have done
as they were told. After ``GO`` in ``PATCHED`` it runs the new code, after ``REVERT`` the old."""

_S = TypeVar("_S", Stage, Phase)
_E = TypeVar("_E", Said, "Order | Said")


class IllegalEvent(Exception):
    """This party does not expect this in the state that it is in."""


def next_of(table: Mapping[_S, Mapping[_E, _S]], state: _S, event: _E) -> _S:
    """The state that an event leads to. Raises ``IllegalEvent``."""
    following = table[state].get(event)
    if following is None:
        raise IllegalEvent(f"a {type(state).__name__} of {state.value!r} has no {event.value!r}")
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
                kind = f"*{event.value}*" if isinstance(event, Order) else event.value
                by_next.setdefault(following, []).append(kind)
            parts += [
                f"| {state.value} | {'; '.join(events)} | {following.value} |"
                for following, events in by_next.items()
            ] or [f"| {state.value} | | |"]
        parts.append("")
    return "\n".join(parts)
