"""Judges completions by the reward function of the task, each within a time limit."""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from monarch.actor import Actor, context, endpoint
from monarch.runs.hold.trial import PlacedError
from monarch.runs.record.places import users_place
from monarch_recipes.rollouts.problems import RewardedProblem, is_solved, load_problems, reward
from monarch_recipes.task import part, tell_of_lost_parts
from monarch_reload import ReloadReport

_COMES_BACK_SECONDS = 1.0


class RewardFailed(PlacedError):
    """The reward function raised, took too long, or returned something other than a finite
    number.
    """


class RewardStuck(RewardFailed):
    """The reward function takes too long and cannot be interrupted.

    Its process must be replaced.
    """


class _TooSlow(BaseException):
    """Raised in the thread of a reward function that takes too long."""


@dataclass(frozen=True)
class Judged:
    """Rewards, and which completions are right, for each group; the code that judged them.

    ``generation`` is that of the workspace, and ``code`` the digest of the reward function.
    """

    rewards: list[list[float]]
    solved: list[list[bool]]
    generation: int
    code: str


class Reward(Actor):
    """One of the reward actors. ``problems`` names the same problems as for the generators."""

    def __init__(self, task: str | None, problems: str, num_held_out: int, data_seed: int) -> None:
        self.task = task
        self.problems = part(task, load_problems)(problems, num_held_out, data_seed)

    def __reload__(self, change: ReloadReport) -> None:
        """Warn the author of an edit that removes a function of the task."""
        tell_of_lost_parts(self.task, change)

    @endpoint
    def judge(self, numbers: list[int], completions: list[list[str]], seconds: float) -> Judged:
        """Judge completions: ``completions`` has the texts for each problem of ``numbers``.

        The reward function may take ``seconds`` for each text. Raises as `rewards_within` does.
        """
        function, generation = part(self.task, reward), context().generation
        problems = [self.problems.of(number) for number in numbers]
        pairs = [
            (problem, text)
            for problem, texts in zip(problems, completions, strict=True)
            for text in texts
        ]
        values = iter(rewards_within(seconds, function, pairs))
        rewards = [[next(values) for _ in texts] for texts in completions]
        solved = [
            [bool(part(self.task, is_solved)(problem, text)) for text in texts]
            for problem, texts in zip(problems, completions, strict=True)
        ]
        return Judged(rewards, solved, generation, code_digest(function))


def rewards_within(
    seconds: float,
    function: Callable[[RewardedProblem, str], float],
    pairs: Sequence[tuple[RewardedProblem, str]],
) -> list[float]:
    """Call the reward function for each pair of problem and completion, and return the rewards.

    Raises RewardFailed if the function raises, returns no finite number, or is interrupted after
    ``seconds`` in one call; RewardStuck if the call cannot be interrupted. The calls run on a
    thread of their own, in which an exception can be raised between two Python instructions. A
    signal could not be used: only main threads get signals, and an actor does not run on one.
    """
    values: list[Any] = []
    errors: list[BaseException] = []
    now_judged = (0, time.monotonic())  # the number of the pair, and the start of its call

    def work() -> None:
        nonlocal now_judged
        try:
            for number, (problem, completion) in enumerate(pairs):
                now_judged = (number, time.monotonic())
                values.append(function(problem, completion))
        except BaseException as error:
            errors.append(error)

    def where(number: int) -> str:
        problem, completion = pairs[number]
        return f"the reward of {completion!r} for {problem.question!r}"

    thread = threading.Thread(target=work, name="reward", daemon=True)
    thread.start()
    while thread.is_alive():
        number, began = now_judged
        seconds_left = began + seconds - time.monotonic()
        if seconds_left > 0:
            thread.join(seconds_left)
            continue
        # The thread may just have begun the next pair; this pair was too slow all the same.
        text = f"{where(number)} took longer than reward_timeout_seconds = {seconds:g}"
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_TooSlow))
        thread.join(_COMES_BACK_SECONDS)
        if thread.is_alive():
            raise RewardStuck(f"{text}, and cannot be interrupted")
        raise RewardFailed(text, _place(errors))
    for number, value in enumerate(values):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            code = getattr(function, "__code__", None)
            place = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
            raise RewardFailed(f"{where(number)} is {value!r}, which is no finite number", place)
    if errors:
        text = f"{type(errors[0]).__name__}: {errors[0]}, in {where(len(values))}"
        raise RewardFailed(text, _place(errors))
    return list(map(float, values))


def _place(errors: Sequence[BaseException]) -> tuple[str, int]:
    return users_place(traceback.extract_tb(errors[0].__traceback__)) if errors else ("", 0)


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function and of the functions and values of its package that it uses.

    It changes with what these do, and not with a comment or a blank line.
    """
    digest = hashlib.sha256()
    seen: set[int] = set()

    def add(value: Any, package: str) -> None:
        if id(value) in seen:
            return
        if isinstance(value, FunctionType):
            seen.add(id(value))
            if value.__module__.partition(".")[0] == package:
                add_code(value.__code__, value.__globals__, package)
                add((value.__defaults__, value.__kwdefaults__), package)
        elif isinstance(value, (str, bytes, int, float, bool, tuple, frozenset, type(None))):
            digest.update(repr(value).encode())
        elif not isinstance(value, ModuleType):
            digest.update(getattr(value, "__qualname__", type(value).__qualname__).encode())

    def add_code(code: CodeType, names: dict[str, Any], package: str) -> None:
        digest.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                add_code(constant, names, package)
            else:
                digest.update(repr(constant).encode())
        for name in code.co_names:
            if name in names:
                digest.update(name.encode())
                add(names[name], package)

    add(function, getattr(function, "__module__", "").partition(".")[0])
    return digest.hexdigest()[:16]
