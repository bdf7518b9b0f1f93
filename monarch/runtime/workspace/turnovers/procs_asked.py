"""Orders of a change of generation to procs, and what these say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from monarch.runtime.answers import Outcome
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import AnyMessage

__all__ = ["Asked", "ask", "gather"]

_log = logging.getLogger("monarch.reload")


class Asked(NamedTuple):
    """A proc that was asked something."""

    proc: ProcAddress
    answer: Promise[Outcome]


def ask(
    node: Node, procs: Iterable[ProcAddress], make: Callable[[int], AnyMessage], data: bytes = b""
) -> list[Asked]:
    return [Asked(proc, node.request(proc, make, data)) for proc in procs]


def gather(
    outcome: ReloadOutcome,
    asked: Sequence[Asked],
    seconds: float,
    label: str,
    replaced: dict[Uid, ProcAddress] | None = None,
) -> ReloadOutcome:
    """Add what the procs say to ``outcome``; those that give way to new ones, to ``replaced``."""
    for proc, answer in asked:
        if not answer.wait(seconds):
            text = f"the process {proc.uid} has not answered for {seconds:g} s"
            outcome.refused.append(RefusedFile(label, text))
        elif answer.value.is_down:
            # It has no code to switch; its owner hears of its end elsewhere.
            _log.info("a proc has ended during a push: %s", answer.value.error)
        elif answer.value.error:
            outcome.refused.append(RefusedFile(proc.uid, answer.value.error))
        else:
            said = msgspec.convert(answer.value.body, ReloadOutcome)
            outcome.add(said)
            if said.is_replaced and replaced is not None:
                replaced[proc.uid] = proc
    return outcome
