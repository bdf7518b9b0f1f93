"""Judges completions by the reward function of the task, each within a time limit."""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
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
    """The reward function raised, took too long, or returned what is no finite number."""


class RewardStuck(RewardFailed):
    """It cannot be interrupted where it is: its process has to be replaced."""


class _TooSlow(BaseException):
    """Raised in the thread of a reward function that takes too long."""


@dataclass(frozen=True)
class Judged:
    """The rewards of each group; which completions are right; and the code that judged."""

    rewards: list[list[float]]
    solved: list[list[bool]]
    generation: int
    code: str


class Reward(Actor):
    """One member of the reward actors. ``problems`` are those that the generators have."""

    def __init__(self, task: str | None, problems: str, num_held_out: int, data_seed: int) -> None:
        self.task = task
        self.problems = part(task, load_problems)(problems, num_held_out, data_seed)

    def __reload__(self, change: ReloadReport) -> None:
        """Have the author of an edit know where a part of the task is gone."""
        tell_of_lost_parts(self.task, change)

    @endpoint
    def judge(self, numbers: list[int], completions: list[list[str]], seconds: float) -> Judged:
        """The rewards of the completions of each problem; each may take so long. Raises
        RewardFailed."""
        function, generation = part(self.task, reward), context().generation
        found = [self.problems.of(number) for number in numbers]
        rewards = [
            [reward_within(seconds, function, problem, text) for text in texts]
            for problem, texts in zip(found, completions, strict=True)
        ]
        solved = [
            [bool(part(self.task, is_solved)(problem, text)) for text in texts]
            for problem, texts in zip(found, completions, strict=True)
        ]
        return Judged(rewards, solved, generation, code_digest(function))


def reward_within(
    seconds: float,
    function: Callable[[RewardedProblem, str], float],
    problem: RewardedProblem,
    completion: str,
) -> float:
    """What the function returns, a finite number, within so many seconds. Raises RewardFailed.

    It runs on a thread, which is interrupted between two steps of Python: a signal would need the
    main thread, which an actor does not have.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(problem, completion))
        except BaseException as error:
            errors.append(error)

    where = f"the reward of {completion!r} for {problem.question!r}"
    thread = threading.Thread(target=work, name="reward", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_TooSlow))
        thread.join(_COMES_BACK_SECONDS)
        text = f"{where} took longer than reward_timeout_seconds = {seconds:g}"
        if thread.is_alive():
            raise RewardStuck(f"{text}, and cannot be interrupted")
        raise RewardFailed(text, _place(errors))
    if errors:
        error = errors[0]
        raise RewardFailed(f"{type(error).__name__}: {error}, in {where}", _place(errors))
    value = results[0]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        code = getattr(function, "__code__", None)
        place = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
        raise RewardFailed(f"{where} is {value!r}, which is no finite number", place)
    return float(value)


def _place(errors: Sequence[BaseException]) -> tuple[str, int]:
    return users_place(traceback.extract_tb(errors[0].__traceback__)) if errors else ("", 0)


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of a function with the functions and values of the same package that it uses: it
    changes with what they do, and not with a comment or a blank line."""
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
