"""A small task for TitanRL, and a small run of it on CPUs.

    python -m torchtitan.experiments.rl.train --module vowels --config small

The model, of random weights, has to answer with vowels: the reward of an answer is the share of its
characters that are vowels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import (
    CompileConfig,
    DebugConfig,
    OverrideConfig,
    TrainingConfig,
    derive,
    override,
)
from torchtitan.config.configurable import Configurable
from torchtitan.experiments.rl.actors.generator import (
    SamplingConfig,
    VLLMCudagraphConfig,
    VLLMGenerator,
)
from torchtitan.experiments.rl.actors.trainer import PolicyTrainer
from torchtitan.experiments.rl.components.batcher import BatchConfig, Batcher
from torchtitan.experiments.rl.components.training_sample_builder import TrainingSampleBuilder
from torchtitan.experiments.rl.controller import AsyncLoopConfig, Controller, ValidationConfig
from torchtitan.experiments.rl.environment import MessageEnv
from torchtitan.experiments.rl.environment.message import (
    MessageEnvInitOutput,
    MessageEnvStepOutput,
)
from torchtitan.experiments.rl.losses import GRPOLoss
from torchtitan.experiments.rl.renderer import RendererConfig
from torchtitan.experiments.rl.rollout import Rollout
from torchtitan.experiments.rl.rollout.rollouter import Rollouter
from torchtitan.experiments.rl.rubrics import RewardFn, Rubric
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata
from torchtitan.models.qwen3 import model_registry


class CPUAttention(VarlenAttention):
    """Attention within each packed document, on a CPU, where torch's own has no gradients."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def forward(
        self,
        q_TNH: torch.Tensor,
        k_TNH: torch.Tensor,
        v_TNH: torch.Tensor,
        *,
        attention_masks: VarlenMetadata,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: object,
    ) -> torch.Tensor:
        lengths = torch.diff(attention_masks.cu_seq_q).tolist()
        split = [each.transpose(0, 1).split(lengths, dim=1) for each in (q_TNH, k_TNH, v_TNH)]
        return torch.cat(
            [
                F.scaled_dot_product_attention(
                    *document, is_causal=True, scale=scale, enable_gqa=enable_gqa
                ).transpose(0, 1)
                for document in zip(*split, strict=True)
            ]
        )


@override(target=VarlenAttention.Config, description="attention on a CPU")
def cpu_attention(config: VarlenAttention.Config) -> CPUAttention.Config:
    return derive(config, CPUAttention.Config)


class Numbers(Configurable):
    """Yields the numbers 0, 1, 2 and so on, as inputs of environments."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    def __init__(self, config: Config) -> None:
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


class OneQuestion(MessageEnv):
    """An environment that asks the model for one number, and ends with its answer."""

    @dataclass(kw_only=True, slots=True)
    class Config(MessageEnv.Config):
        pass

    def __init__(self, config: Config, *, env_input: int) -> None:
        self._number = env_input

    async def init(self) -> MessageEnvInitOutput:
        return MessageEnvInitOutput(
            init_prompt_messages=[{"role": "user", "content": f"{self._number}?"}]
        )

    async def step(self, completion_message: object) -> MessageEnvStepOutput:
        return MessageEnvStepOutput(done=True)


class ShareOfVowels(RewardFn):
    @dataclass(kw_only=True, slots=True)
    class Config(RewardFn.Config):
        pass

    async def __call__(self, rollout: Rollout, env_input: int) -> float:
        text = rollout.turns[-1].completion_message["content"] or ""
        return sum(character in "aeiou" for character in text) / max(len(text), 1)


class VowelsRollouter(Rollouter):
    @dataclass(kw_only=True, slots=True)
    class Config(Rollouter.Config):
        train_dataset: Numbers.Config = field(default_factory=Numbers.Config)
        validation_dataset: Numbers.Config = field(default_factory=Numbers.Config)
        message_env: OneQuestion.Config = field(default_factory=OneQuestion.Config)
        rubric: Rubric.Config = field(
            default_factory=lambda: Rubric.Config(reward_fns=[ShareOfVowels.Config(weight=1.0)])
        )


def small() -> Controller.Config:
    """20 steps of GRPO with a trainer and a generator."""
    spec = model_registry("debugmodel", attn_backend="varlen")
    spec.model.layers = spec.model.layers[:2]
    return Controller.Config(
        model_spec=spec,
        async_loop=AsyncLoopConfig(
            num_training_steps=20,
            num_prompts_per_train_step=2,
            num_samples_per_prompt=8,
            target_offpolicy_steps=0,
            # A step comes also where all answers of a group are equally good.
            training_sample_builder=TrainingSampleBuilder.Config(drop_zero_std_reward_groups=False),
            validation=ValidationConfig(num_samples=4),
            batcher=Batcher.Config(batch=BatchConfig(local_batch_size=1, seq_len=256)),
        ),
        compile=CompileConfig(enable=False),
        rollouter=VowelsRollouter.Config(),
        renderer=RendererConfig(name="default"),
        trainer=PolicyTrainer.Config(
            optimizer=default_adamw(lr=5e-3),
            lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
            training=TrainingConfig(mixed_precision_param="float32"),
            loss=GRPOLoss.Config(),
            debug=DebugConfig(seed=0),
            override=OverrideConfig(imports=["vowels.cpu_attention"]),
        ),
        generator=VLLMGenerator.Config(
            model_dtype="float32",
            sampling=SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=8),
            cudagraph=VLLMCudagraphConfig(enable=False),
        ),
    )
