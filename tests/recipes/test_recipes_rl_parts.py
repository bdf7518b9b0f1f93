"""The parts of the recipe `rl` that need no process: sampling, loss, buffer, judging."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch.config_file import ConfigError, resolve_config, to_toml
from monarch.config_file.live import live_keys
from monarch.config_file.toml_text import loads
from monarch_recipes import rl
from monarch_recipes.rl import RLConfig, build_optimizer, build_policy, check
from monarch_recipes.rollouts.generator import PolicyEngine, SamplingEngine
from monarch_recipes.rollouts.groups import Rows, Sample, SampleGroup, rows_of
from monarch_recipes.rollouts.grpo import LossSettings, advantages_of, loss_of
from monarch_recipes.rollouts.judging import (
    RewardFailed,
    RewardStuck,
    code_digest,
    rewards_within,
)
from monarch_recipes.rollouts.learner import Learner, LearnSettings
from monarch_recipes.rollouts.policy import BEGIN, END, Policy, decode, encode, log_probs_of
from monarch_recipes.rollouts.problems import (
    RewardedProblem,
    demonstration,
    is_solved,
    load_problems,
    prompt,
    reward,
)
from monarch_recipes.rollouts.replay import Replay
from monarch_recipes.rollouts.sampling import SampleRequest, sample
from monarch_recipes.rollouts.vllm_engine import VLLMEngine

SETTINGS = LearnSettings(LossSettings(0.2, 2.0, 0.05), 1e-3, 1.0, 1, 7)
PROBLEM = RewardedProblem(3, "sort 3121", "1123")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: threads that share a busy machine would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(3)
    return Policy(width=32, num_blocks=2, num_heads=4, num_positions=40)


def requests_of(texts: list[str]) -> list[SampleRequest]:
    return [SampleRequest((BEGIN, *encode(text)), 11 * n) for n, text in enumerate(texts)]


def groups_of(policy: Policy, num: int = 5, temperature: float = 0.7) -> list[SampleGroup]:
    """Groups of three samples of the policy, with rewards that a test made up."""
    chance, groups = random.Random(5), []
    for number in range(num):
        tokens = (BEGIN, *encode("sort " + "7" * (number + 1)))
        wanted = [SampleRequest(tokens, 100 * number + one) for one in range(3)]
        made = sample(policy, wanted, temperature=temperature, max_tokens=8, num_slots=2)
        samples = tuple(Sample(one.tokens, one.log_probs, "", chance.random()) for one in made)
        groups.append(SampleGroup(number, tokens, samples, number, 0, temperature))
    return groups


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probabilities_of_the_cache_are_those_of_whole_sequences(
    policy: Policy, temperature: float
) -> None:
    """To 1e-5, with prompts of several lengths and fewer slots than sequences."""
    wanted = requests_of(["sort 1", "sort 31415", "2", "a longer prompt: "] * 3)
    made = sample(policy, wanted, temperature=temperature, max_tokens=9, num_slots=5)
    for request, one in zip(wanted, made, strict=True):
        whole = torch.tensor([[*request.prompt, *one.tokens]])
        start = len(request.prompt) - 1
        found = log_probs_of(policy(whole[:, :-1]), whole[:, 1:], temperature)[0, start:]
        assert torch.allclose(found, torch.tensor(one.log_probs), atol=1e-5)


def test_a_sample_does_not_depend_on_what_is_sampled_beside_it(policy: Policy) -> None:
    wanted = requests_of(["sort 1", "sort 31415", "2", "sort 99"])
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens": 9}
    together = sample(policy, wanted, num_slots=4, **settings)
    alone = [sample(policy, [one], num_slots=1, **settings)[0] for one in wanted]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert len({one.tokens for one in together}) > 1


def test_sequences_end_at_their_end_or_at_the_most(policy: Policy) -> None:
    made = sample(policy, requests_of(["sort 1"] * 40), temperature=3.0, max_tokens=12, num_slots=6)
    assert any(one.tokens[-1] == END and len(one.tokens) < 12 for one in made)
    assert all(END not in one.tokens[:-1] for one in made)
    with pytest.raises(ValueError, match="do not fit"):
        sample(policy, requests_of(["x" * 39]), temperature=1.0, max_tokens=9, num_slots=1)


def test_output_and_embedding_share_their_weights(policy: Policy) -> None:
    assert policy.head.weight is policy.tokens.weight
    names = [name for name, _ in policy.named_parameters()]
    assert "head.weight" not in names


def test_advantages_are_distances_from_the_group_in_its_deviations() -> None:
    found = advantages_of([0.0, 1.0, 1.0, 0.5])
    assert found is not None
    values = torch.tensor([0.0, 1.0, 1.0, 0.5])
    expected = (values - values.mean()) / values.std(unbiased=False)
    assert torch.allclose(torch.tensor(found), expected, atol=1e-6)
    assert advantages_of([0.3, 0.3, 0.3]) is None


def plain_loss(
    policy: Policy, reference: Policy, groups: list[SampleGroup], kl: float
) -> torch.Tensor:
    """GRPO as in its paper, a token at a time."""
    total, count = torch.zeros(()), 0
    for group in groups:
        rewards = torch.tensor(group.rewards)
        spread = rewards.std(unbiased=False)
        for one in group.samples:
            gain = (one.reward - rewards.mean()) / spread
            whole = torch.tensor([[*group.prompt, *one.tokens]])
            now = policy(whole)[0] / group.temperature
            then = reference(whole)[0] / group.temperature
            for place, (token, behaviour) in enumerate(
                zip(one.tokens, one.log_probs, strict=True), len(group.prompt) - 1
            ):
                mine = now[place].log_softmax(-1)[token]
                weight = min(2.0, math.exp(mine.item() - behaviour))
                ratio = torch.exp(mine - mine.detach())
                ahead = then[place].log_softmax(-1)[token].detach() - mine
                total = total - weight * ratio * gain + kl * (ahead.exp() - ahead - 1)
                count += 1
    return total / count


def test_loss_and_gradient_are_those_of_a_plain_program(policy: Policy) -> None:
    """Also of samples that an older policy made, in micro-batches of a size that does not divide
    their number."""
    groups = groups_of(policy)
    learner = Learner(
        lambda: Policy(32, 2, 4, 40), lambda made: torch.optim.SGD(made.parameters(), lr=1.0),
        parallelism="none", device=torch.device("cpu"),
    )  # fmt: skip
    learner.policy.load_state_dict(policy.state_dict())
    learner.begin_reinforcing()
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    newer = Policy(32, 2, 4, 40)
    newer.load_state_dict(learner.policy.state_dict())
    expected = plain_loss(newer, policy, groups, SETTINGS.loss.kl)
    expected.backward()
    before = {name: one.detach().clone() for name, one in learner.policy.named_parameters()}
    unclipped = dataclasses.replace(SETTINGS, clip_norm=None, learning_rate=1.0)
    found = learner.learn(rows_of(groups), unclipped)
    assert abs(found["loss"] - expected.item()) < 1e-6
    assert found["ratio_error"] > 1e-3
    for name, parameter in learner.policy.named_parameters():
        gradient = before[name] - parameter
        assert torch.allclose(gradient, newer.get_parameter(name).grad, atol=1e-6), name


def test_ratios_are_1_on_fresh_samples(policy: Policy) -> None:
    learner = Learner(
        lambda: policy, lambda made: torch.optim.AdamW(made.parameters()),
        parallelism="none", device=torch.device("cpu"),
    )  # fmt: skip
    found = learner.learn(rows_of(groups_of(policy)), SETTINGS)
    assert found["ratio_error"] < 1e-5
    assert abs(found["ratio"] - 1) < 1e-6
    assert found["clipped_share"] == 0


def test_later_updates_are_clipped_about_the_policy_before_the_step(policy: Policy) -> None:
    learner = Learner(
        lambda: policy, lambda made: torch.optim.SGD(made.parameters(), lr=1.0),
        parallelism="none", device=torch.device("cpu"),
    )  # fmt: skip
    settings = dataclasses.replace(SETTINGS, num_updates=4, learning_rate=1.0)
    found = learner.learn(rows_of(groups_of(policy)), settings)
    assert found["ratio_error"] < 1e-5  # of the first update
    assert found["clipped_share"] > 0


def test_what_is_clipped_has_no_gradient() -> None:
    mask = torch.ones(1, 3)
    now = torch.log(torch.tensor([[1.5, 1.0, 0.5]])).requires_grad_()
    zeros, gain = torch.zeros(1, 3), torch.tensor([1.0])
    found = loss_of(now, zeros, zeros, None, gain, mask, LossSettings(0.2, 10.0, 0.0))
    found.loss.backward()
    assert now.grad is not None
    assert torch.allclose(now.grad, torch.tensor([[0.0, -1.0, -0.5]]))
    assert int(found.num_clipped) == 2


def test_weights_of_older_samples_are_truncated() -> None:
    one = torch.ones(1, 1)
    now = torch.zeros(1, 1, requires_grad=True)
    behaviour = torch.full((1, 1), math.log(0.1))
    found = loss_of(
        now, now.detach(), behaviour, None, torch.tensor([1.0]), one, LossSettings(0.2, 2.0, 0.0)
    )
    assert float(found.loss.detach()) == pytest.approx(-2.0)
    assert float(found.ratio) == pytest.approx(10.0)


def test_rows_mark_the_tokens_that_the_policy_chose() -> None:
    samples = (Sample((7, END), (-1.0, -2.0), "", 1.0), Sample((8,), (-3.0,), "", 0.0))
    rows = rows_of([SampleGroup(0, (BEGIN, 5, 6), samples, 0, 0, 1.0)])
    assert rows.tokens.tolist() == [[BEGIN, 5, 6, 7, END], [BEGIN, 5, 6, 8, 0]]
    assert rows.mask.tolist() == [[False, False, True, True], [False, False, True, False]]
    assert rows.behaviour.tolist() == [[0.0, 0.0, -1.0, -2.0], [0.0, 0.0, -3.0, 0.0]]
    assert isinstance(rows.micro_batches(1)[1], Rows)


def group(version: int, *, generation: int = 0) -> SampleGroup:
    samples = (Sample((7,), (-1.0,), "a", 0.0), Sample((8,), (-1.0,), "b", 1.0))
    return SampleGroup(version, (BEGIN,), samples, version, 0, 1.0, generation, "code")


def test_the_buffer_is_bounded_and_lets_go_of_what_is_too_old() -> None:
    replay = Replay(capacity=4)
    assert replay.add(0, [group(0), group(0)]) == 0
    assert replay.add(1, [group(1), group(2), group(3)]) == 1
    assert replay.add(1, [group(9)]) == 0  # asked again: it is there already
    taken = replay.take(step=4, most=2, max_staleness=3)
    assert [one.version for one in taken.groups] == [1, 2]
    assert (taken.num_stale, taken.num_waiting) == (1, 1)
    assert replay.take(step=4, most=2, max_staleness=3) == taken
    assert [one.version for one in replay.take(5, 2, 3).groups] == [3]


def test_the_buffer_goes_on_from_its_state() -> None:
    replay = Replay(capacity=4)
    replay.add(3, [group(0), group(1), group(2)])
    taken = replay.take(step=1, most=1, max_staleness=9)
    again = Replay(capacity=4)
    again.load(json.loads(json.dumps(replay.state())))
    assert again.groups == replay.groups
    assert again.newest_batch == 3
    assert again.take(1, 1, 9) == taken


def test_what_a_bad_reward_has_judged_leaves_the_buffer() -> None:
    replay = Replay(capacity=4)
    replay.add(0, [group(0, generation=1), group(0, generation=2)])
    assert replay.drop_judged_by(2) == 1
    assert [one.reward_generation for one in replay.groups] == [1]


def loops(problem: RewardedProblem, completion: str) -> float:
    while True:
        pass


def test_a_reward_that_loops_is_interrupted() -> None:
    with pytest.raises(RewardFailed, match="took longer than reward_timeout_seconds") as failed:
        rewards_within(0.05, loops, [(PROBLEM, "<1>")])
    assert not isinstance(failed.value, RewardStuck)
    assert failed.value.place[0].endswith("test_recipes_rl_parts.py")


def test_each_completion_has_its_own_limit_and_the_one_that_is_too_slow_is_named() -> None:
    judged: list[str] = []

    def loops_at_last(problem: RewardedProblem, completion: str) -> float:
        judged.append(completion)
        until = time.monotonic() + 0.3
        while completion == "<9>" or (completion == "<1>" and time.monotonic() < until):
            pass
        return 1.0

    texts = ["<1>", "<1>", "<1>", "<9>", "<2>"]
    assert rewards_within(0.8, loops_at_last, [(PROBLEM, text) for text in texts[:3]]) == [1.0] * 3
    judged.clear()
    with pytest.raises(RewardFailed, match="the reward of '<9>' for"):
        rewards_within(0.8, loops_at_last, [(PROBLEM, text) for text in texts])
    assert judged == texts[:4]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1"])
def test_a_reward_must_be_a_finite_number(value: Any) -> None:
    with pytest.raises(RewardFailed, match="no finite number"):
        rewards_within(5.0, lambda problem, completion: value, [(PROBLEM, "<1>")])


def test_a_reward_that_raises_names_its_place() -> None:
    def fails(problem: RewardedProblem, completion: str) -> float:
        return 1 / 0

    with pytest.raises(RewardFailed, match="ZeroDivisionError") as failed:
        rewards_within(5.0, fails, [(PROBLEM, "<1>")])
    assert failed.value.place[1] == fails.__code__.co_firstlineno + 1


def test_the_digest_of_a_reward_follows_what_it_calls() -> None:
    def digest(helper: str, about: str = "") -> str:
        names: dict[str, Any] = {"__name__": "a_task"}
        code = f"FULL = 1.0\n{about}\ndef helper(text):\n    return {helper}\n"
        code += "def reward(problem, text):\n    return helper(text)\n"
        exec(code, names)
        return code_digest(names["reward"])

    assert digest("len(text)") == digest("len(text)", about="# a comment")
    assert digest("len(text)") != digest("2 * len(text)")
    assert digest("FULL") != digest("len(text)")


def test_rewards_have_partial_credit_under_a_rule_of_format() -> None:
    rewards = [reward(PROBLEM, text) for text in ("1123", "<1>", "<1132>", "<1123>", "<<1123>")]
    assert rewards[0] == rewards[4] == 0
    assert 0 < rewards[1] < rewards[2] < rewards[3] == 1
    assert is_solved(PROBLEM, "<1123>")
    assert not is_solved(PROBLEM, "1123")


def test_problems_are_the_same_everywhere_and_none_is_held_out_and_trained_on() -> None:
    problems, others = load_problems("sorting", 64, 1), load_problems("sorting", 64, 1)
    trained = [problems.of(number) for number in range(500)]
    assert trained == [others.of(number) for number in range(500)]
    held_out = {one.question for one in problems.held_out}
    assert not held_out & {one.question for one in trained}
    assert problems.of(-3) == problems.held_out[2]
    right = sum(
        is_solved(one, demonstration(one, random.Random(n))) for n, one in enumerate(trained)
    )
    assert 0.2 < right / len(trained) < 0.6
    with pytest.raises(ConfigError, match="none of sorting"):
        load_problems("sums", 3, 1)
    with pytest.raises(ConfigError, match="pip install reasoning-gym"):
        load_problems("reasoning_gym:chain_sum", 3, 1)


class Gym:
    """What reasoning_gym takes and gives, by its documentation."""

    def create_dataset(self, name: str, size: int, seed: int) -> Any:
        numbers = range(min(size, 50))
        entries = [{"question": f"{name} {seed} {n}", "answer": str(n)} for n in numbers]

        class Entries(list[Any]):
            def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
                return 1.0 if answer == entry["answer"] else 0.01

        return Entries(entries)


def test_problems_of_reasoning_gym_are_scored_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in."""
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", Gym())
    problems = load_problems("reasoning_gym:chain_sum", 3, seed=4)
    assert [one.question for one in problems.held_out] == [f"chain_sum 5 {n}" for n in range(3)]
    one = problems.of(57)
    assert one.question == "chain_sum 4 7"
    assert prompt(one) == "chain_sum 4 7: "
    assert reward(one, "<7>") == 1.0
    assert reward(one, "<8>") == 0.01
    assert not is_solved(one, "<8>")


def test_problems_of_a_data_set_have_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in."""

    class DataRows(list[Any]):
        def shuffle(self, seed: int) -> DataRows:
            return self

    def load_dataset(path: str, name: str | None, split: str) -> DataRows:
        assert (path, name, split) == ("openai/gsm8k", "main", "train")
        return DataRows({"question": f"q{n}", "answer": f"so\n#### {n}"} for n in range(5))

    stand_in = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(__import__("sys").modules, "datasets", stand_in)
    problems = load_problems("hf:openai/gsm8k:main", 2, 0)
    assert [one.answer for one in problems.held_out] == ["0", "1"]
    assert [problems.of(number).answer for number in range(4)] == ["2", "3", "4", "2"]


class FakeVLLM:
    """`vllm.LLM` as far as the engine uses it, over a policy of ours. Not vLLM."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.num_resets = 0

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[None]:
        assert method == "load_new_weights"
        names = dict(self.policy.named_parameters())
        for name, tensor in args[0]:
            names[name].data.copy_(tensor)
        return [None]

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> list[Any]:
        outputs = []
        for asked, one in zip(prompts, params, strict=True):
            [made] = sample(
                self.policy, [SampleRequest(tuple(asked["prompt_token_ids"]), one.seed or 0)],
                temperature=one.temperature, max_tokens=one.max_tokens, num_slots=1,
            )  # fmt: skip
            pairs = zip(made.tokens, made.log_probs, strict=True)
            logprobs = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
            output = SimpleNamespace(token_ids=list(made.tokens), logprobs=logprobs)
            outputs.append(SimpleNamespace(outputs=[output]))
        return outputs


def engines(policy: Policy) -> list[SamplingEngine]:
    def params(**settings: Any) -> SimpleNamespace:
        assert settings["logprobs"] == 0
        return SimpleNamespace(**settings)

    theirs = Policy(32, 2, 4, 40)
    tensors = dict(theirs.named_parameters())
    return [PolicyEngine(policy, 3), VLLMEngine(FakeVLLM(theirs), params, tensors)]


@pytest.mark.parametrize("number", [0, 1], ids=["own", "vllm, a stand-in"])
def test_each_engine_keeps_the_contract(policy: Policy, number: int) -> None:
    newest = Policy(32, 2, 4, 40)
    engine = engines(Policy(32, 2, 4, 40))[number]
    tensors = engine.tensors()
    assert set(tensors) == {name for name, _ in newest.named_parameters()}
    for name, parameter in newest.named_parameters():
        tensors[name].copy_(parameter.detach())
    engine.loaded()
    wanted = requests_of(["sort 1", "sort 31415", "2", "sort 77"])
    made = engine.generate(wanted, temperature=0.8, max_tokens=6)
    assert made == engine.generate(wanted, temperature=0.8, max_tokens=6)
    for request, one in zip(wanted, made, strict=True):
        assert len(one.tokens) == len(one.log_probs) <= 6
        whole = torch.tensor([[*request.prompt, *one.tokens]])
        start = len(request.prompt) - 1
        found = log_probs_of(newest(whole[:, :-1]), whole[:, 1:], 0.8)[0, start:]
        assert torch.allclose(found, torch.tensor(one.log_probs), atol=1e-5)
    greedy = engine.generate(wanted, temperature=0.0, max_tokens=6)
    others = [dataclasses.replace(one, seed=9) for one in wanted]
    assert greedy == engine.generate(others, temperature=0.0, max_tokens=6)


def test_the_default_policy_has_less_than_a_million_parameters() -> None:
    config = RLConfig()
    policy = build_policy(config)
    assert sum(one.numel() for one in policy.parameters()) < 1_000_000
    assert build_optimizer(config, policy).param_groups[0]["weight_decay"] == 0
    text = prompt(load_problems("sorting", 1, 1).of(0))
    assert decode(encode(text)) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [("samples_per_problem", 1), ("buffer_groups", 3), ("max_staleness", 0), ("width", 30),
     ("temperature", 0.0), ("num_positions", 11), ("max_tokens", 47)],
)  # fmt: skip
def test_configs_that_cannot_work_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError):
        RLConfig(**{key: value})


@pytest.mark.parametrize("problems", ["sortng", "sorting:7", "hf:", "reasoning_gym:no_package"])
def test_problems_that_there_are_none_of_are_refused_before_anything_starts(
    problems: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"is none of|pip install reasoning-gym"):
        check(RLConfig(problems=problems), 1, 2)


def test_a_demonstration_that_is_too_long_for_the_policy_says_so(policy: Policy) -> None:
    tokens = torch.zeros(1, policy.num_positions + 1, dtype=torch.long)
    with pytest.raises(ValueError, match="does not fit into the num_positions"):
        policy(tokens)


def test_the_shipped_config_holds_every_key_at_its_default() -> None:
    text = (Path(rl.__file__).parent / "configs" / "rl.toml").read_text()
    assert resolve_config(RLConfig, text).config == RLConfig()
    assert list(loads(text)) == list(loads(to_toml(RLConfig())))
    told = [line.partition(" ")[0] for line in text.splitlines() if "# live" in line]
    assert told == live_keys(RLConfig)


def test_the_buffer_of_a_process_that_died_is_read_by_the_next(tmp_path: Path) -> None:
    from monarch_recipes.rollouts.replay import ReplayBuffer

    first = ReplayBuffer(4, tmp_path / "of" / "buffer.json")
    first.replay.add(0, [group(0)])
    first.write()
    assert ReplayBuffer(4, tmp_path / "of" / "buffer.json").replay.groups == [group(0)]
