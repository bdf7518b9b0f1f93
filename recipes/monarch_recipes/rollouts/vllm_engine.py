"""Lets a generator sample with vLLM. Written from vLLM's documentation; never run with vLLM.

New weights are fetched into tensors on the host and sent to vLLM's workers, whose model loads them
by name (`load_weights`). vLLM's cache of prefixes is cleared then. Log-probabilities must be those
at the sampling temperature, so `logprobs_mode` must be `processed_logprobs`. In your task:

    def build_engine(config):
        policy = build_policy(config)
        return VLLMEngine.of("Qwen/Qwen2.5-0.5B-Instruct", dict(policy.named_parameters()))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monarch_recipes.rollouts.sampling import SampledTokens, SampleRequest

_WORKER = f"{__name__}.WeightsFromTrainer"


class WeightsFromTrainer:
    """Adds a method to vLLM's workers, as their `worker_extension_cls`, that loads new weights."""

    model_runner: Any  # the worker's own

    def load_new_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        """Load weights into the worker's model, under the names of the model's checkpoint."""
        self.model_runner.model.load_weights(weights=iter(weights))


class VLLMEngine:
    """A `SamplingEngine` on vLLM.

    ``llm`` is a `vllm.LLM` with `WeightsFromTrainer`, and ``params`` is `vllm.SamplingParams`.
    ``tensors`` have the names, shapes and types of the trainer's weights.
    """

    def __init__(
        self, llm: Any, params: Callable[..., Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.llm, self.params = llm, params
        self._tensors = {
            name: torch.empty_like(tensor.detach()) for name, tensor in tensors.items()
        }

    @classmethod
    def of(cls, model: str, tensors: Mapping[str, torch.Tensor], **settings: Any) -> VLLMEngine:
        """Load vLLM with the model of this name.

        ``settings`` are further arguments of `vllm.LLM`.
        """
        vllm = importlib.import_module("vllm")
        llm = vllm.LLM(
            model=model,
            worker_extension_cls=_WORKER,
            logprobs_mode="processed_logprobs",
            **settings,
        )
        return cls(llm, vllm.SamplingParams, tensors)

    def tensors(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def loaded(self) -> None:
        self.llm.collective_rpc("load_new_weights", args=(list(self._tensors.items()),))
        self.llm.reset_prefix_cache()

    def generate(
        self, requests: Sequence[SampleRequest], *, temperature: float, max_tokens: int
    ) -> list[SampledTokens]:
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        params = [
            self.params(
                temperature=temperature,
                max_tokens=max_tokens,
                logprobs=0,
                seed=request.seed if temperature else None,
            )
            for request in requests
        ]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [_completion(output.outputs[0]) for output in outputs]


def _completion(output: Any) -> SampledTokens:
    tokens = tuple(output.token_ids)
    log_probs = (
        float(by_token[token].logprob)
        for token, by_token in zip(tokens, output.logprobs, strict=True)
    )
    return SampledTokens(tokens, tuple(log_probs))
