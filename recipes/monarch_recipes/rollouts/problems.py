"""The task: problems with answers, how they are asked, shown and judged.

Here digits to sort, under a rule of format. The demonstrations of the supervised phase forget
repeated digits, so that imitating them solves about two fifths of the problems, however long it
takes.
`reasoning_gym:NAME` and `hf:NAME` take problems from there (pip installs them).
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
    """``number`` is its place among the problems; ``data`` is what its source adds."""

    number: int
    question: str
    answer: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problems:
    """``train`` makes the problem of any number, none of which is among those ``held_out``."""

    train: Callable[[int], RewardedProblem]
    held_out: list[RewardedProblem]

    def of(self, number: int) -> RewardedProblem:
        """The problem of a number: those that are held out have negative ones, from -1 on."""
        return self.held_out[-1 - number] if number < 0 else self.train(number)


def load_problems(source: str, num_held_out: int, seed: int) -> Problems:
    """The problems that the key ``problems`` of the config names."""
    check_source(source)
    kind, _, name = source.partition(":")
    if kind == "reasoning_gym":
        return _of_reasoning_gym(name, num_held_out, seed)
    if kind == "hf":
        return _of_hugging_face(name, num_held_out, seed)
    return _sorting(num_held_out, seed)


def check_source(source: str) -> None:
    """Raises ConfigError where there are no such problems, as far as that is told by the name."""
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
    """What the policy reads. Edit it while a run goes on: the next batch is asked so."""
    return f"{problem.question}: "


def demonstration(problem: RewardedProblem, draw: random.Random) -> str:
    """A completion to imitate, which need not be right."""
    kept: list[str] = []
    for character in problem.answer:
        is_repeated = kept and kept[-1] == character and problem.data.get("may_forget")
        if not (is_repeated and draw.random() < _FORGETS):
            kept.append(character)
    return f"<{''.join(kept)}>"


def reward(problem: RewardedProblem, completion: str) -> float:
    """From 0 to 1. Edit it while a run goes on: the next batch is judged so.

    Nothing without the brackets around the answer; a little for them, more for each character in
    its place, and all for the right answer.
    """
    given = answer_in(completion)
    if given is None:
        return 0.0
    if "score" in problem.data:
        return float(problem.data["score"](given))
    if given == problem.answer:
        return 1.0
    num_right = sum(map(str.__eq__, given, problem.answer))
    share = num_right / max(len(given), len(problem.answer))
    return _IS_WELL_FORMED + _FOR_PLACES * share


def is_solved(problem: RewardedProblem, completion: str) -> bool:
    """Whether it counts as success in the evaluation, whatever the reward is."""
    given = answer_in(completion)
    if given is not None and "score" in problem.data:
        return bool(problem.data["score"](given) >= 1)
    return given == problem.answer


def answer_in(completion: str) -> str | None:
    """The answer, where the completion is one in brackets, and nothing else."""
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
    """Rows with `question` and `answer`, as of gsm8k; what follows `####` is the answer, if any. A
    configuration of the dataset follows a colon: `hf:openai/gsm8k:main`."""
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
