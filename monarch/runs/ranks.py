"""Asking all ranks for a collective step: the first that fails ends it, and none may hang."""

from __future__ import annotations

import time
from typing import Any

from monarch.errors import MonarchError
from monarch.runs.witness import stacks_of, tell_hang

__all__ = ["RankHangs", "RunFailed", "ask_all"]


class RunFailed(MonarchError):
    """A run ends, and running it again as it is would not help; the message says why."""


class RankHangs(MonarchError):
    """A collective call was not answered in time; the message has every rank's stack."""


def ask_all(endpoint: Any, *args: Any, seconds: float, witnesses: Any, doing: str) -> list[Any]:
    """The answers of all ranks, in order of arrival.

    Raises what the first rank raised, without waiting for those that wait for it: ``ActorError``,
    ``SupervisionError``. Raises ``RankHangs`` after ``seconds``; ``doing`` says what hangs then.
    """
    deadline = time.monotonic() + seconds
    answers = []
    for future in endpoint.stream(*args):
        try:
            answers.append(future.get(timeout=max(0.0, deadline - time.monotonic())))
        except TimeoutError:
            if future.done():
                raise  # The endpoint's own.
            raise RankHangs(tell_hang(stacks_of(witnesses), doing, seconds)) from None
    return answers
