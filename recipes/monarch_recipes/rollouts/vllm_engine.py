"""A generator's engine on vLLM; written by its documentation, and not run with it.

The weights are fetched into tensors on the host, and given to vLLM's workers, whose model loads
them by name (`load_weights`); cached prefixes of older weights are forgotten. Log-probabilities are
those at the temperature that a token was drawn with, so `logprobs_mode` must be
`processed_logprobs`. In a task of yours:

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
    """Mixed into vLLM's workers (`worker_extension_cls`)."""

    model_runner: Any  # the worker's own

    def load_new_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        """Take new weights by the names that the checkpoint of the model has."""
        self.model_runner.model.load_weights(weights=iter(weights))


class VLLMEngine:
    """``llm`` is a `vllm.LLM` with `WeightsFromTrainer`, ``params`` its `SamplingParams`;
    ``tensors`` are as the trainer's weights, which are fetched into them."""

    def __init__(
        self, llm: Any, params: Callable[..., Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.llm, self.params = llm, params
        self._tensors = {name: torch.empty_like(one.detach()) for name, one in tensors.items()}

    @classmethod
    def of(cls, model: str, tensors: Mapping[str, torch.Tensor], **settings: Any) -> VLLMEngine:
        """Of a model's name; ``settings`` are further ones of `vllm.LLM`."""
        vllm = importlib.import_module("vllm")
        llm = vllm.LLM(
            model=model, worker_extension_cls=_WORKER, logprobs_mode="processed_logprobs",
            **settings,
        )  # fmt: skip
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
                temperature=temperature, max_tokens=max_tokens, logprobs=0,
                seed=request.seed if temperature else None,
            )
            for request in requests
        ]  # fmt: skip
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [_completion(output.outputs[0]) for output in outputs]


def _completion(output: Any) -> SampledTokens:
    tokens = tuple(output.token_ids)
    chosen = zip(tokens, output.logprobs, strict=True)
    return SampledTokens(tokens, tuple(float(found[token].logprob) for token, found in chosen))
