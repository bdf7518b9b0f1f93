"""Reinforcement learning (GRPO): generators sample, a reward judges, trainers learn, all at once.

    monarch run rl
    monarch run rl --config rl.toml temperature=0.8 num_generators=4

The defaults fit two CPU cores: a policy of 110,000 parameters learns to sort digits. First it
imitates demonstrations that forget repeated digits, and then solves about 40 % of the held-out
problems; with the reward it learns to solve about 90 %. While it runs, edit the reward, the prompt
or the loss, with `monarch sync --watch` beside it, or a live key in the config file: the next batch
uses the edit. Read this file from top to bottom; copy it (`monarch recipe cp rl my_recipe.py`), and
change it: problems, prompt and reward go into a module of yours (`task=my_task`, see docs/rl.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from monarch.actor import Actor, HostMesh, context, endpoint
from monarch.config_file import ConfigError, check_range, live
from monarch.rdma import SharedStateDict
from monarch.runs import Deaths, Record
from monarch.runs.attempts import TrainingAttempt, with_attempts
from monarch.runs.hold.holding import Holding
from monarch.runs.recover.checkpoint_choice import check_choices, chosen_for
from monarch.runs.recover.ranks import when_up
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.checkpoint import checkpoint_path, save_checkpoint
from monarch_recipes.collective import find_checkpoint_for_all
from monarch_recipes.device import use_device
from monarch_recipes.rendezvous import meet_anew, open_meeting
from monarch_recipes.rollouts.generator import PolicyEngine, Weights
from monarch_recipes.rollouts.groups import SampleGroup, rows_of
from monarch_recipes.rollouts.grpo import LossSettings
from monarch_recipes.rollouts.imitation import demonstrations
from monarch_recipes.rollouts.learner import Learner, LearnSettings
from monarch_recipes.rollouts.pipeline import Pipeline
from monarch_recipes.rollouts.policy import Policy
from monarch_recipes.rollouts.problems import check_source, load_problems
from monarch_recipes.schedule import is_due
from monarch_recipes.task import own_part, part, tell_of_lost_parts
from monarch_reload import ReloadReport
from monarch_sync.words import counted

PRELOAD = ("torch", "torch._dynamo")  # imported once a host, ahead of its procs
FAST_DEV_RUN = ("num_supervised_steps=2", "num_steps=3", "num_held_out=8", "evaluate_every=2")


@dataclass(frozen=True)
class RLConfig:
    """All settings of a run, except its hosts.

    Keys with `live` may change while it runs: edit the TOML file.
    """

    # Your own part: a module with some of `load_problems`, `prompt`, `demonstration`, `reward`,
    # `is_solved`, `encode`, `decode`, `build_policy`, `build_optimizer`, `build_engine`.
    task: str | None = None

    # The problems: "sorting", "reasoning_gym:NAME" or "hf:NAME".
    problems: str = "sorting"
    num_held_out: int = 256  # for evaluation only
    data_seed: int = 1  # decides which problems there are

    # The policy: a transformer over characters.
    width: int = 64
    num_blocks: int = 2
    num_heads: int = 4
    num_positions: int = 48  # of prompt and completion together

    # The supervised phase, which imitates demonstrations.
    num_supervised_steps: int = 500
    supervised_batch_size: int = 64
    supervised_learning_rate: float = live(1e-3)

    # Reinforcement: a step learns from a group of samples of each of its problems.
    num_steps: int = 800  # after the supervised phase
    problems_per_step: int = 32
    samples_per_problem: int = 8
    max_tokens: int = 10  # of a completion
    temperature: float = live(1.0)
    learning_rate: float = live(5e-4)
    clip_norm: float | None = live(1.0)  # of the whole gradient; "none" does not clip
    clip: float = live(0.2)  # of the ratio to the policy before the step
    max_importance_weight: float = live(2.0)  # of samples of older policies
    kl: float = live(0.0)  # weight of the divergence from the supervised policy
    updates_per_step: int = 1
    max_micro_batch_size: int = 256  # sequences a pass of one rank; more are accumulated

    # With 1, a batch is generated while the trainers learn from the one before, by weights that are
    # one step older. 0 is synchronous, and gives the same curve each time.
    num_batches_ahead: int = 1
    max_staleness: int = live(4)  # most steps between the policy that sampled and this one
    buffer_groups: int = 128  # groups that may wait to be learned from

    # The reward.
    reward_timeout_seconds: float = live(5.0)  # for one completion
    on_reward_change: Literal["keep", "drop", "rescore"] = live("keep")  # for groups that wait then
    num_recorded: int = live(8)  # samples of each batch that go to rollouts.jsonl

    # Where and how it computes.
    seed: int = 0  # decides the first weights, and what is sampled
    num_generators: int = 1
    num_rewards: int = 1
    num_trainers: int = 1  # over all hosts
    parallelism: Literal["ddp", "fsdp"] = "ddp"  # of the trainers
    num_slots: int = 256  # sequences that a generator samples at the same time
    device: Literal["auto", "cpu", "cuda"] = "auto"  # of the trainers
    num_threads: int = 1  # of each process, on a CPU

    # Hangs and deaths, evaluation and checkpoints; the latter two in steps, 0 at the end only.
    collective_timeout_seconds: float = 300.0  # a step without progress for so long counts as hung
    edit_patience_seconds: float | None = live(None)
    max_restarts: int = 5  # of the trainers, in a row without a new checkpoint
    evaluate_every: int = live(50)
    checkpoint_every: int = live(25)
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest of this run; "never"; a checkpoint's path; another run

    def __post_init__(self) -> None:
        at_least_one = (
            "num_held_out", "width", "num_blocks", "num_heads", "num_steps", "problems_per_step",
            "max_tokens", "updates_per_step", "max_micro_batch_size", "num_generators",
            "num_rewards", "num_trainers", "num_slots", "num_threads", "supervised_batch_size",
            "num_checkpoints_kept",
        )  # fmt: skip
        not_negative = (
            "num_supervised_steps", "learning_rate", "supervised_learning_rate", "kl",
            "num_batches_ahead", "max_staleness", "num_recorded", "max_restarts",
            "evaluate_every", "checkpoint_every",
        )  # fmt: skip
        check_range(self, *at_least_one, least=1)
        check_range(self, *not_negative, least=0)
        check_range(self, "samples_per_problem", least=2)  # A group of one has no spread.
        positive = "temperature", "clip", "max_importance_weight", "reward_timeout_seconds"
        check_range(self, *positive, "clip_norm", "edit_patience_seconds", more_than=0)
        check_range(self, "collective_timeout_seconds", more_than=0)
        if self.width % self.num_heads:
            raise ConfigError(f"is no multiple of num_heads = {self.num_heads}", key="width")
        if self.num_positions < self.max_tokens + 2:
            text = f"has no room for a prompt and max_tokens = {self.max_tokens}"
            raise ConfigError(text, key="num_positions")
        if self.max_staleness < self.num_batches_ahead:
            text = f"is less than num_batches_ahead = {self.num_batches_ahead}: all is too old"
            raise ConfigError(text, key="max_staleness")
        if self.buffer_groups < self.problems_per_step:
            text = f"is less than problems_per_step = {self.problems_per_step}"
            raise ConfigError(text, key="buffer_groups")


def build_policy(config: RLConfig) -> nn.Module:
    """Return the model that learns: tokens (N, T) to logits (N, T, vocabulary)."""
    return Policy(config.width, config.num_blocks, config.num_heads, config.num_positions)


def build_optimizer(config: RLConfig, policy: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the policy; any torch optimizer will do.

    A new one is made after the supervised phase. Before each step the recipe sets the learning
    rate.
    """
    return torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0)


def loss_settings(config: RLConfig) -> LossSettings:
    """Return the settings of the loss, which is `monarch_recipes.rollouts.grpo.loss_of`."""
    return LossSettings(config.clip, config.max_importance_weight, config.kl)


@dataclass(frozen=True)
class RLPlan:
    """The result of a trainer's `setup`: the run's first step, and the buffer of its checkpoint."""

    first_step: int
    num_parameters: int
    resumed_from: Path | None
    skipped: tuple[str, ...]
    buffer: dict[str, Any] | None


@dataclass(frozen=True)
class RLStep:
    """The result of one step on one rank.

    ``weights`` is the version of the weights that the rank published after it; 0 if another rank
    did.
    """

    step: int
    numbers: dict[str, float]
    weights: int
    generation: int


class PolicyTrainer(Actor):
    """One rank of the trainers. Its endpoints must be called on all ranks together."""

    def __init__(self, config: RLConfig, checkpoint_dir: Path, weights: str) -> None:
        self.config, self.checkpoint_dir = config, checkpoint_dir
        self.shared = SharedStateDict(weights)

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Open the store where the ranks meet; return (host, port), or (file, 0).

        Call it on rank 0 only, before `setup`.
        """
        self.store, host, port = open_meeting(0)
        return host, port

    @endpoint
    def setup(self, store: tuple[str, int]) -> RLPlan:
        """Join the process group, build the policy, and load the checkpoint that the config names.

        Call it first, on all ranks.
        """
        config = self.config
        self.device = use_device(config.device, int(os.environ["LOCAL_RANK"]), config.num_threads)
        meet_anew(store, self.device, config.collective_timeout_seconds)
        load = part(config.task, load_problems)
        self.problems = load(config.problems, config.num_held_out, config.data_seed)
        torch.manual_seed(config.seed)
        self.learner = Learner(
            lambda: part(config.task, build_policy)(config),
            lambda policy: part(config.task, build_optimizer)(config, policy),
            parallelism=config.parallelism,
            device=self.device,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        )
        self.num_steps_done = 0
        checkpoint, skipped = find_checkpoint_for_all(
            config.resume, self.checkpoint_dir, self.learner.policy, ["buffer"]
        )
        path = buffer = None
        if checkpoint is not None:
            self.num_steps_done, path = checkpoint.step, checkpoint.path
            buffer = checkpoint.state["buffer"]
            self.learner.load_state_dict(checkpoint.state)
        num = sum(parameter.numel() for parameter in self.learner.policy.parameters())
        return RLPlan(self.num_steps_done, num, path, skipped, buffer)

    @endpoint
    def rejoin(self, store: tuple[str, int]) -> None:
        """Join a new process group after the old one was aborted. The policy and its state stay."""
        meet_anew(store, self.device, self.config.collective_timeout_seconds)
        self.learner.wrap()

    def __reload__(self, change: ReloadReport) -> None:
        """Warn the author of an edit that removes a function of the task."""
        tell_of_lost_parts(self.config.task, change)

    @endpoint
    def imitate(self, config: RLConfig) -> RLStep:
        """Make one step of the supervised phase."""
        size = config.supervised_batch_size
        numbers = range(self.num_steps_done * size, (self.num_steps_done + 1) * size)
        tokens, mask = demonstrations(config.task, self.problems, numbers)
        rate = config.supervised_learning_rate
        return self.done(self.learner.imitate(tokens, mask, rate))

    @endpoint
    def learn(self, config: RLConfig, groups: list[SampleGroup]) -> RLStep:
        """Make one step of reinforcement from groups of samples whose rewards differ.

        Without such groups the step learns nothing, but still counts.
        """
        if self.learner.reference is None:
            self.learner.begin_reinforcing()
        if not groups:
            return self.done({})
        settings = LearnSettings(
            part(config.task, loss_settings)(config),
            config.learning_rate,
            config.clip_norm,
            config.updates_per_step,
            config.max_micro_batch_size,
        )
        return self.done(self.learner.learn(rows_of(groups), settings))

    def done(self, numbers: dict[str, float]) -> RLStep:
        """Count a step, publish the new weights, and return the result."""
        self.num_steps_done += 1
        return RLStep(self.num_steps_done, numbers, self.publish(), context().generation)

    @endpoint
    def publish(self) -> int:
        """Publish the weights for the generators, and return the number of this version.

        With ddp only rank 0 publishes; the other ranks return 0.
        """
        state = {**self.learner.named_tensors(), "num_steps": torch.tensor([self.num_steps_done])}
        if self.config.parallelism == "fsdp":
            ranks = {"rank": self.learner.rank, "num_ranks": self.learner.world_size}
            return self.shared.publish(state, **ranks).get()
        return self.shared.publish(state).get() if self.learner.rank == 0 else 0

    @endpoint
    def save(self, buffer: dict[str, Any]) -> Path:
        """Write a checkpoint with ``buffer``, the replay buffer's state, and return its path.

        Rank 0 writes it.
        """
        state = {**self.learner.state_dict(), "buffer": buffer, "step": self.num_steps_done}
        if self.learner.rank == 0:
            num_kept = self.config.num_checkpoints_kept
            save_checkpoint(self.checkpoint_dir, self.num_steps_done, state, num_kept)
        return checkpoint_path(self.checkpoint_dir, self.num_steps_done)


@dataclass(frozen=True)
class RLOutcome:
    """The end of a run.

    ``held_out_solved`` is the share of held-out problems that the policy solves; None if the run
    was stopped before its last step.
    """

    step: int
    held_out_solved: float | None
    checkpoint: Path | None
    num_restarts: int


def run(config: RLConfig, hosts: HostMesh, record: Record) -> RLOutcome:
    """Train on `config.num_trainers` procs, beside generators, reward actors and a buffer.

    A dead generator, reward actor or buffer is replaced alone. If a trainer dies, all trainers
    start again from the last checkpoint.
    """
    chosen_for(record.folder, config.resume, None)  # Raises if there is none.
    torch.manual_seed(config.seed)
    has_own_engine = own_part(config.task, "build_engine") is not None
    policy = None if has_own_engine else part(config.task, build_policy)(config)
    engine = PolicyEngine(policy, config.num_slots) if policy is not None else None
    with Deaths(), contextlib.ExitStack() as stack:
        pipeline = Pipeline(config, engine, hosts, record, preload=PRELOAD)
        stack.callback(pipeline.close)
        return with_attempts(
            lambda attempt: train(record.live(config), record, attempt, pipeline),
            hosts,
            config.num_trainers // len(hosts),
            record,
            name="rl",
            preload=PRELOAD,
            max_restarts=config.max_restarts,
            has_shards=config.parallelism == "fsdp",
        )


def train(
    config: RLConfig, record: Record, attempt: TrainingAttempt, pipeline: Pipeline
) -> RLOutcome:
    """Drive all actors from the client until the last step, or until the record is stopping."""
    procs, saving = attempt.procs, attempt.saving
    resume, _ = chosen_for(record.folder, config.resume, None)
    if attempt.saved_step is not None:
        resume = "auto"  # After its first checkpoint, a run continues from its own checkpoints.
    name = f"policy {time.time_ns()}"  # A new name, as the versions of new trainers begin at 1.
    first_config = dataclasses.replace(config, resume=resume)
    folder = record.checkpoint_dir.absolute()
    trainers = procs.spawn("trainer", PolicyTrainer, first_config, folder, name)
    open_store = trainers.flatten("rank").slice(rank=0).open_store
    store = when_up(open_store, record)
    setup_torch_elastic_env(procs)

    def rejoin() -> None:
        trainers.rejoin.call(open_store.call_one().get()).get()

    holding = Holding(
        procs,
        trainers,
        record,
        seconds=config.collective_timeout_seconds,
        rejoin=rejoin if config.parallelism == "ddp" else None,
    )
    plan: RLPlan = holding.ask(
        trainers.setup, store, doing="setting up", unless=lambda: record.is_stopping, in_place=False
    )[0]
    saving.resumed(plan.resumed_from, plan.first_step, plan.skipped)
    record.message(
        f"{plan.num_parameters:,} parameters on {counted(len(trainers), 'trainer')}, with "
        f"{counted(len(pipeline.generators), 'generator')} and "
        f"{counted(len(pipeline.rewards), 'reward actor')}; {config.num_supervised_steps} "
        f"supervised steps, then {config.num_steps}"
    )
    pipeline.begin_anew(attempt.hosts, plan.buffer)
    step, num_steps = plan.first_step, config.num_supervised_steps + config.num_steps
    weights = Weights(name, max(holding.ask(trainers.publish, doing="publishing")))
    solved: float | None = None

    def evaluate() -> float:
        share = holding.run("evaluation", lambda: pipeline.evaluate(config, weights))
        record.metrics(step, num_steps, {"held_out_solved": share})
        return share

    def save(*, must: bool = False) -> None:
        state, doing = pipeline.buffer.ask(0, "state").get(), "saving a checkpoint"
        saving.save(step, lambda: holding.ask(trainers.save, state, doing=doing)[0], must=must)

    def reinforce() -> tuple[list[RLStep], dict[str, float]]:
        """Make one step: collect a batch, begin the next one, judge the batch, learn."""
        began, number = time.perf_counter(), step - config.num_supervised_steps
        pipeline.begin(number, number, config, weights)
        groups, numbers = holding.run("generation", pipeline.collect, f"batch {number}")
        pipeline.let_edit_in()
        pipeline.begin(number + config.num_batches_ahead, number + 1, config, weights)
        batch = holding.run(
            "judging", lambda: pipeline.judge(number, groups, config, step + 1), f"batch {number}"
        )
        numbers |= batch.numbers | pipeline.keep(batch)
        taken = pipeline.take(step, config)
        learn_began = time.perf_counter()
        doing = f"step {step + 1}"
        results = holding.ask(trainers.learn, config, taken.groups, doing=doing)
        ended = time.perf_counter()
        seconds = {"learn_seconds": ended - learn_began, "step_seconds": ended - began}
        return results, numbers | taken.numbers(step) | seconds

    with holding.until_stopped():
        while step < num_steps and not record.is_stopping:
            config = record.live(config)
            numbers: dict[str, float] = {}
            if step < config.num_supervised_steps:
                results = holding.ask(trainers.imitate, config, doing=f"step {step + 1}")
            else:
                results, numbers = reinforce()
            first: RLStep = results[0]
            step, weights = first.step, Weights(name, max(result.weights for result in results))
            attempt.step_made(step)
            generation = min(result.generation for result in results)
            # A terminal has room for a few numbers, and shows the first ones.
            shown = {name: numbers[name] for name in ("reward", "solved") if name in numbers}
            all_numbers = shown | first.numbers | numbers | {"generation": generation}
            record.metrics(step, num_steps, all_numbers)
            is_first_policy = step == config.num_supervised_steps
            if step < num_steps and (is_due(step, config.evaluate_every) or is_first_policy):
                evaluate()
            is_wanted = record.take_save_wanted() or saving.is_overdue
            if step < num_steps and (is_due(step, config.checkpoint_every) or is_wanted):
                save()

    if step >= num_steps:
        solved = evaluate()
        record.message(f"{solved:.1%} of the held-out problems are solved after step {step}")
    if step > plan.first_step or solved is not None:
        save(must=True)
    return RLOutcome(step, solved, saving.latest, attempt.num_restarts)


def check(config: RLConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the config does not fit the number of hosts. No process is started."""
    check_choices(config.resume, None)
    if config.task is None:
        check_source(config.problems)
    if config.num_trainers % num_hosts:
        text = f"cannot be shared evenly by {counted(num_hosts, 'host')}"
        raise ConfigError(text, key="num_trainers")


def plan(config: RLConfig, num_hosts: int, procs_per_host: int) -> dict[str, Any]:
    """Return the lines of `monarch run rl --plan`, without starting a process."""
    with torch.device("meta"):
        policy = part(config.task, build_policy)(config)
    num = sum(parameter.numel() for parameter in policy.parameters())
    return {
        "parameters": f"{num:,}",
        "processes": f"{config.num_trainers} trainers ({config.parallelism}), "
        f"{config.num_generators} generators, {config.num_rewards} rewards, 1 buffer",
        "a step": f"{config.problems_per_step} problems x {config.samples_per_problem} samples",
        "steps": f"{config.num_supervised_steps} supervised, then {config.num_steps}",
        "batches ahead": str(config.num_batches_ahead),
    }
