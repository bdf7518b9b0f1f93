"""Faults that are injected on purpose: which process has which fault, and at which step.

    kill@40 group=1; hang@80 group=0 rank=1 when=commit; slow@60 seconds=2; lighthouse@100
    random every=50 seed=7 kinds=kill,exit

Faults are separated by ``;``. A fault is ``KIND@STEP`` with optional settings:

- ``group=``, ``rank=`` (within the group): the process. Without them, the seed chooses it.
- ``when=``: ``before`` the quorum; ``inside`` the step, while the others wait for this process's
  gradients (the default); or ``commit``, after the gradients have been averaged.
- ``seconds=``: how long ``slow`` takes.

``random`` makes one fault in every so many steps, the same ones for the same seed.
"""

from __future__ import annotations

import difflib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.runtime.ends.process_group import signal_self

KINDS = ("kill", "exit", "hang", "slow", "lighthouse")
MOMENTS = ("before", "inside", "commit")
_RANDOM = "random"
_FAULT_KEYS = ("group", "rank", "when", "seconds")
_RANDOM_KEYS = ("every", "seed", "kinds", "seconds")
_SLOW_SECONDS = 2.0


class ChaosError(ValueError):
    """A text that does not describe faults. ``column`` says where, counted from 1."""

    def __init__(self, reason: str, column: int, suggestion: str | None = None) -> None:
        super().__init__(reason, column, suggestion)
        self.reason = reason
        self.column = column
        self.suggestion = suggestion

    def __str__(self) -> str:
        return f"column {self.column}: {self.reason}"


@dataclass(frozen=True)
class InjectedFault:
    """A fault of one process in ``step``; steps count from 1.

    ``kill`` is SIGKILL, ``exit`` an exit with a nonzero status, ``hang`` SIGSTOP, ``slow`` a sleep
    of ``seconds``. ``lighthouse`` kills the lighthouse; ``group`` and ``rank`` do not matter then.
    """

    kind: str
    step: int
    group: int
    rank: int
    when: str
    seconds: float

    def __str__(self) -> str:
        if self.kind == "lighthouse":
            return f"lighthouse@{self.step}"
        return f"{self.kind}@{self.step} group={self.group} rank={self.rank} when={self.when}"


@dataclass(frozen=True)
class _Word:
    text: str
    column: int

    def error(self, reason: str, word: str = "", names: Sequence[str] = ()) -> ChaosError:
        near = difflib.get_close_matches(word, names, 1)
        return ChaosError(reason, self.column, near[0] if near else None)


def read_chaos(
    text: str, *, num_steps: int, num_groups: int, procs_per_group: int, seed: int = 0
) -> list[InjectedFault]:
    """Return the faults that a text describes, in the order of their steps.

    Raises ChaosError if the text cannot be read, or names a step, group or rank that does not
    exist.
    """
    size = _Size(num_steps, num_groups, procs_per_group)
    faults: list[InjectedFault] = []
    for words in _phrases(text):
        if words[0].text == _RANDOM:
            faults += _random_faults(words, size)
        else:
            faults.append(_fault(words, size, random.Random(f"{seed} {words[0].text}")))
    return sorted(faults, key=lambda fault: fault.step)


@dataclass(frozen=True)
class _Size:
    num_steps: int
    num_groups: int
    procs_per_group: int


def _phrases(text: str) -> Iterator[list[_Word]]:
    start = 0
    for part in text.split(";"):
        words = [_Word(m[0], start + m.start() + 1) for m in re.finditer(r"\S+", part)]
        if words:
            yield words
        start += len(part) + 1


def _fault(words: list[_Word], size: _Size, dice: random.Random) -> InjectedFault:
    first = words[0]
    kind, at, step_text = first.text.partition("@")
    if kind not in KINDS:
        raise first.error(f"there is no fault '{kind}'", kind, (*KINDS, _RANDOM))
    if not at or not step_text.isdigit() or not 1 <= int(step_text) <= size.num_steps:
        raise first.error(f"expected {kind}@STEP, with a step from 1 to {size.num_steps}")
    settings = _values(words[1:], _FAULT_KEYS)
    return InjectedFault(
        kind=kind,
        step=int(step_text),
        group=_within(settings, "group", size.num_groups, dice),
        rank=_within(settings, "rank", size.procs_per_group, dice),
        when=_moment(settings),
        seconds=_seconds(settings),
    )


def _random_faults(words: list[_Word], size: _Size) -> list[InjectedFault]:
    settings = _values(words[1:], _RANDOM_KEYS)
    if "every" not in settings:
        raise words[0].error("random needs every=, the number of steps that have one fault")
    every = _integer(settings["every"], 1)
    dice = random.Random(_integer(settings["seed"], 0) if "seed" in settings else 0)
    kinds = _kinds(settings.get("kinds"))
    return [
        InjectedFault(
            kind=dice.choice(kinds),
            step=dice.randint(first, min(first + every - 1, size.num_steps)),
            group=dice.randrange(size.num_groups),
            rank=dice.randrange(size.procs_per_group),
            when=dice.choice(MOMENTS),
            seconds=_seconds(settings),
        )
        for first in range(1, size.num_steps + 1, every)
    ]


def _values(words: list[_Word], names: Sequence[str]) -> dict[str, _Word]:
    """Return the words, which must be ``key=value``, by key. Raises ChaosError for unknown keys."""
    settings: dict[str, _Word] = {}
    for word in words:
        key, equals, value = word.text.partition("=")
        if key not in names or not equals:
            raise word.error(f"expected one of {', '.join(f'{k}=' for k in names)}", key, names)
        settings[key] = _Word(value, word.column + len(key) + 1)
    return settings


def _integer(word: _Word, least: int) -> int:
    if not word.text.isdigit() or int(word.text) < least:
        raise word.error(f"expected a whole number from {least}, got '{word.text}'")
    return int(word.text)


def _within(settings: dict[str, _Word], key: str, count: int, dice: random.Random) -> int:
    drawn = dice.randrange(count)
    if key not in settings:
        return drawn
    value = _integer(settings[key], 0)
    if value >= count:
        raise settings[key].error(f"there is no {key} {value}: they count from 0 to {count - 1}")
    return value


def _moment(settings: dict[str, _Word]) -> str:
    word = settings.get("when", _Word("inside", 0))
    if word.text not in MOMENTS:
        raise word.error(f"there is no moment '{word.text}'", word.text, MOMENTS)
    return word.text


def _seconds(settings: dict[str, Any]) -> float:
    word = settings.get("seconds")
    if word is None:
        return _SLOW_SECONDS
    try:
        return float(word.text)
    except ValueError:
        raise word.error(f"expected a number of seconds, got '{word.text}'") from None


def _kinds(word: _Word | None) -> Sequence[str]:
    if word is None:
        return KINDS
    kinds = word.text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise word.error(f"there is no fault '{kind}'", kind, KINDS)
    return kinds


def take_due(faults: list[InjectedFault], group: int, step: int) -> InjectedFault | None:
    """Remove and return the first fault that is due in this step of this group.

    Returns None if there is none. ``faults`` must be in the order of their steps.
    """
    for fault in faults:
        if fault.step > step:
            break
        if fault.kind == "lighthouse" or fault.group == group:
            faults.remove(fault)
            return fault
    return None


def suffer(fault: InjectedFault | None, rank: int, *moments: str) -> None:
    """Carry out the fault in this process, if it is for ``rank`` and for one of these
    ``moments``.
    """
    if fault is None or fault.rank != rank or fault.when not in moments:
        return
    if fault.kind == "slow":
        time.sleep(fault.seconds)
    elif fault.kind == "exit":
        sys.stdout.flush()
        os._exit(3)
    else:
        signal_self(signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
