"""The task: problems with answers, their prompts, demonstrations and rewards.

The problems are digits to sort, with brackets around the answer. The demonstrations of the
supervised phase forget repeated digits, so that imitating them never solves more than about two
fifths of the problems. `reasoning_gym:NAME` and `hf:NAME` name problems of these packages, which
pip installs.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from monarch.config_file import ConfigError

_PACKAGES = {"reasoning_gym": ("reasoning_gym", "reasoning-gym"), "hf": ("datasets", "datasets")}
_LARGE = 1 << 40
_FEWEST_DIGITS, _MOST_DIGITS = 4, 6
_FORGETS = 0.7  # the share of repeated digits that a demonstration leaves out
_IS_WELL_FORMED = 0.1
_FOR_PLACES = 0.4


@dataclass(frozen=True)
class RewardedProblem:
    """A question with its answer. ``number`` is its place among the problems.

    ``data`` holds further values of its source.
    """

    number: int
    question: str
    answer: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problems:
    """``train(number)`` makes a problem for any number; none of them is among ``held_out``."""

    train: Callable[[int], RewardedProblem]
    held_out: list[RewardedProblem]

    def of(self, number: int) -> RewardedProblem:
        """Return the problem of a number. Negative numbers, from -1 on, are the held-out ones."""
        return self.held_out[-1 - number] if number < 0 else self.train(number)


def load_problems(source: str, num_held_out: int, seed: int) -> Problems:
    """Return the problems of ``source``, the value of the config's key ``problems``.

    Raises ConfigError if the source is unknown or its package is not installed.
    """
    check_source(source)
    kind, _, name = source.partition(":")
    if kind == "reasoning_gym":
        return _of_reasoning_gym(name, num_held_out, seed)
    if kind == "hf":
        return _of_hugging_face(name, num_held_out, seed)
    return _sorting(num_held_out, seed)


def check_source(source: str) -> None:
    """Raise ConfigError for an unknown source of problems, or if its package is not installed.

    Does not check that the package has a data set of that name.
    """
    kind, _, name = source.partition(":")
    if source != "sorting" and not (kind in _PACKAGES and name):
        text = f"{source!r} is none of sorting, reasoning_gym:NAME, hf:NAME"
        raise ConfigError(text, key="problems")
    if kind in _PACKAGES:
        module, package = _PACKAGES[kind]
        if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
            text = f"needs {module}, which is not installed here: pip install {package}"
            raise ConfigError(text, key="problems")


def prompt(problem: RewardedProblem) -> str:
    """Return the text that the policy completes. An edit during a run applies to the next batch."""
    return f"{problem.question}: "


def demonstration(problem: RewardedProblem, draw: random.Random) -> str:
    """Return a completion to imitate. It may be wrong."""
    shown: list[str] = []
    for character in problem.answer:
        is_repeated = shown and shown[-1] == character and problem.data.get("may_forget")
        if not (is_repeated and draw.random() < _FORGETS):
            shown.append(character)
    return f"<{''.join(shown)}>"


def reward(problem: RewardedProblem, completion: str) -> float:
    """Return a reward from 0 to 1. An edit during a run applies to the next batch.

    It is 0 without brackets around the answer, 0.1 with them, up to 0.4 more for characters in
    their places, and 1 for the right answer.
    """
    answer = answer_in(completion)
    if answer is None:
        return 0.0
    if "score" in problem.data:
        return float(problem.data["score"](answer))
    if answer == problem.answer:
        return 1.0
    num_right = sum(map(str.__eq__, answer, problem.answer))
    share = num_right / max(len(answer), len(problem.answer))
    return _IS_WELL_FORMED + _FOR_PLACES * share


def is_solved(problem: RewardedProblem, completion: str) -> bool:
    """Return whether a completion counts as solved in the evaluation.

    The reward does not matter.
    """
    answer = answer_in(completion)
    if answer is not None and "score" in problem.data:
        return bool(problem.data["score"](answer) >= 1)
    return answer == problem.answer


def answer_in(completion: str) -> str | None:
    """Return the answer of a completion that is one pair of brackets and nothing else; else
    None.
    """
    is_one = completion.count("<") == completion.count(">") == 1
    if is_one and completion.startswith("<") and completion.endswith(">"):
        return completion[1:-1]
    return None


def _sorting(num_held_out: int, seed: int) -> Problems:
    def digits(number: int) -> str:
        draw = random.Random(seed * _LARGE + number)
        return "".join(draw.choices("0123456789", k=draw.randint(_FEWEST_DIGITS, _MOST_DIGITS)))

    def problem(number: int, text: str) -> RewardedProblem:
        return RewardedProblem(number, f"sort {text}", "".join(sorted(text)), {"may_forget": True})

    texts = [digits(_LARGE // 2 + number) for number in range(num_held_out)]
    kept_out = set(texts)

    def train(number: int) -> RewardedProblem:
        text, again = digits(number), 0
        while text in kept_out:
            again += 1
            text = digits(number + again * _LARGE // 4 + _LARGE)
        return problem(number, text)

    return Problems(train, [problem(-1 - number, text) for number, text in enumerate(texts)])


def _of_reasoning_gym(name: str, num_held_out: int, seed: int) -> Problems:
    gym = importlib.import_module("reasoning_gym")
    train = gym.create_dataset(name, size=1_000_000, seed=seed)
    held_out = gym.create_dataset(name, size=num_held_out, seed=seed + 1)

    def of(dataset: Any, number: int, label: int) -> RewardedProblem:
        entry = dataset[number]

        def score(answer: str) -> float:
            return float(dataset.score_answer(answer=answer, entry=entry))

        return RewardedProblem(label, entry["question"], str(entry["answer"]), {"score": score})

    kept_out = {held_out[number]["question"] for number in range(num_held_out)}

    def trained(number: int) -> RewardedProblem:
        at = number % len(train)
        while train[at]["question"] in kept_out:
            at = (at + 1) % len(train)
        return of(train, at, number)

    return Problems(trained, [of(held_out, at, -1 - at) for at in range(num_held_out)])


def _of_hugging_face(name: str, num_held_out: int, seed: int) -> Problems:
    """Load problems from a data set of Hugging Face with the columns `question` and `answer`.

    In an answer with `####`, as in gsm8k, only the text after it counts. ``name`` may end with a
    configuration of the data set, after a colon: `openai/gsm8k:main`.
    """
    datasets = importlib.import_module("datasets")
    path, _, configuration = name.partition(":")
    rows = datasets.load_dataset(path, configuration or None, split="train").shuffle(seed=seed)
    if len(rows) <= num_held_out:
        raise ConfigError(f"{path} has only {len(rows)} rows", key="num_held_out")

    def problem(at: int, number: int) -> RewardedProblem:
        row = rows[at]
        return RewardedProblem(
            number, row["question"], str(row["answer"]).rpartition("####")[2].strip()
        )

    num_train = len(rows) - num_held_out
    return Problems(
        lambda number: problem(num_held_out + number % num_train, number),
        [problem(at, -1 - at) for at in range(num_held_out)],
    )
