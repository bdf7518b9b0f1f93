"""What TitanRL imports of vLLM, where vLLM is not installed: an engine in plain torch, for a CPU.

It runs the model that TitanRL registers, which is torchtitan's own, and samples from its logits. A
step computes each sequence from its start: there is no cache of keys and values, no CUDA graph and
no kernel of vLLM's. What TitanRL only imports, inherits from or passes on is empty.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import sys
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

PACKAGE = sys.modules[__name__]
_models: dict[str, type] = {}


def _module(name: str, **members: Any) -> None:
    """Make ``vllm.NAME`` a module with these members."""
    path = "vllm"
    for part in name.split("."):
        parent, path = sys.modules[path], f"{path}.{part}"
        module = sys.modules.setdefault(path, types.ModuleType(path))
        setattr(parent, part, module)
    vars(sys.modules[path]).update(members)


class EngineArgs(SimpleNamespace):
    """The arguments with which an engine is made."""


class AttentionConfig(SimpleNamespace):
    """How attention is computed; the engine has one way."""


class CUDAGraphMode(enum.Enum):
    NONE = 0
    FULL = 2
    FULL_DECODE_ONLY = 3
    FULL_AND_PIECEWISE = 4


class CompilationMode(enum.IntEnum):
    NONE = 0


@dataclass
class PassConfig:
    enable_sp: bool | None = None
    sp_min_token_num: int | None = None


@dataclass
class CompilationConfig:
    cudagraph_mode: CUDAGraphMode | str = CUDAGraphMode.NONE
    mode: CompilationMode = CompilationMode.NONE
    cudagraph_capture_sizes: list[int] = field(default_factory=list)
    pass_config: PassConfig = field(default_factory=PassConfig)

    def __post_init__(self) -> None:
        if isinstance(self.cudagraph_mode, str):
            self.cudagraph_mode = CUDAGraphMode[self.cudagraph_mode]


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(kw_only=True)
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclass
class RequestOutput:
    """A finished request: ``outputs`` holds one sample."""

    request_id: str
    outputs: list[Any]
    metrics: None = None
    num_cached_tokens: int = 0


@dataclass
class Sequence:
    """A request that runs."""

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    random: torch.Generator
    logprobs: list[dict[int, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def output(self) -> RequestOutput:
        token_ids = self.token_ids[self.num_prompt_tokens :]
        sample = SimpleNamespace(
            token_ids=token_ids, logprobs=self.logprobs, finish_reason=self.finish_reason
        )
        return RequestOutput(self.request_id, [sample])

    def take(self, logits: torch.Tensor, max_model_len: int) -> None:
        """Sample the next token from its logits, and append it.

        If the sequence ends with the token, ``finish_reason`` says why.
        """
        params = self.params
        logprobs = logits.float().log_softmax(-1)
        if params.temperature == 0.0:
            token = int(logprobs.argmax())
        else:
            chances = (logprobs / params.temperature).softmax(-1)
            token = int(torch.multinomial(chances, 1, generator=self.random))
        self.token_ids.append(token)
        self.logprobs.append({token: SimpleNamespace(logprob=float(logprobs[token]))})
        if token in (params.stop_token_ids or ()):
            self.finish_reason = "stop"
        elif len(self.logprobs) == params.max_tokens or len(self.token_ids) == max_model_len:
            self.finish_reason = "length"


class LLMEngine:
    """Samples from the model that was registered last, on the ranks that the environment names."""

    def __init__(self, args: EngineArgs) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        tp, dp = args.tensor_parallel_size, args.data_parallel_size
        groups = [dist.new_group(list(range(n * tp, n * tp + tp))) for n in range(dp)]
        dp_rank = dist.get_rank() // tp
        _tensor_parallel.group = groups[dp_rank]
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(
                tensor_parallel_size=tp, data_parallel_size=dp, data_parallel_rank=dp_rank
            ),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
            device_config=SimpleNamespace(device="cpu"),
            cache_config=None,
        )
        self._max_model_len = args.max_model_len
        self._max_num_seqs = args.max_num_seqs
        (model_class,) = _models.values()
        with _current(self.vllm_config), _default_dtype(getattr(torch, args.dtype)):
            self._model = model_class(vllm_config=self.vllm_config).eval()
        worker = SimpleNamespace(get_model=lambda: self._model)
        self.model_executor = SimpleNamespace(driver_worker=worker)
        self.renderer = SimpleNamespace(render_cmpl=list, shutdown=lambda: None)
        self._sequences: list[Sequence] = []

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        return cls(args)

    def add_request(
        self, *, request_id: str, prompt: dict[str, list[int]], params: SamplingParams
    ) -> None:
        if params.n != 1 or params.top_p < 1.0 or params.prompt_logprobs is not None:
            raise NotImplementedError("this engine takes one sample, of all tokens, and no more")
        token_ids = list(prompt["prompt_token_ids"])
        # Ranks that share a model must draw the same tokens.
        seed = zlib.crc32(request_id.encode()) if params.seed is None else params.seed
        random = torch.Generator().manual_seed(seed)
        self._sequences.append(Sequence(request_id, token_ids, len(token_ids), params, random))

    def has_unfinished_requests(self) -> bool:
        return bool(self._sequences)

    def step(self) -> list[RequestOutput]:
        """Add a token to each sequence that runs, the oldest first, and return those that end."""
        running = self._sequences[: self._max_num_seqs]
        lengths = [len(sequence.token_ids) for sequence in running]
        token_ids = torch.tensor([token for each in running for token in each.token_ids])
        positions = torch.cat([torch.arange(length) for length in lengths])
        Attention.lengths = lengths
        hidden = self._model(input_ids=token_ids, positions=positions)
        last = torch.tensor(lengths).cumsum(0) - 1
        logits = self._model.compute_logits(hidden[last])
        for sequence, row in zip(running, logits, strict=True):
            sequence.take(row, self._max_model_len)
        self._sequences = [each for each in self._sequences if each.finish_reason is None]
        return [each.output for each in running if each.finish_reason is not None]

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """Do nothing, as this engine caches nothing.

        Requests that go on use the new weights for all of their tokens.
        """


class Attention(torch.nn.Module):
    """Causal attention within each sequence of a batch, whose ``lengths`` the engine sets."""

    lengths: list[int]

    def __init__(self, *, num_heads: int, num_kv_heads: int, scale: float, **_: Any) -> None:
        super().__init__()
        self.scale = scale
        self.enable_gqa = num_heads != num_kv_heads

    def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
        """Attend; queries, keys and values are ``(tokens, heads, head_dim)``."""
        split = [each.transpose(0, 1).split(self.lengths, dim=1) for each in qkv]
        rows = [
            F.scaled_dot_product_attention(
                *sequence, is_causal=True, scale=self.scale, enable_gqa=self.enable_gqa
            ).transpose(0, 1)
            for sequence in zip(*split, strict=True)
        ]
        return torch.cat(rows).flatten(1)


class ModelRegistry:
    @staticmethod
    def register_model(name: str, model_class: type) -> None:
        _models[name] = model_class


class PretrainedConfig(SimpleNamespace):
    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PretrainedConfig:
        return cls(**values)


class AttentionBackendEnum(enum.Enum):
    CUSTOM = "custom"
    FLEX_ATTENTION = "flex_attention"


_tensor_parallel = SimpleNamespace(group=None, device_communicator=None)
_config = SimpleNamespace(current=None)


def tensor_model_parallel_all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    dist.all_reduce(result, group=_tensor_parallel.group)
    return result


@contextlib.contextmanager
def _current(config: Any) -> Iterator[None]:
    _config.current = config
    try:
        yield
    finally:
        _config.current = None


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    outer = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(outer)


def _unchanged(*_: Any, **__: Any) -> Any:
    """Return a decorator that returns what it decorates."""
    return lambda decorated: decorated


def _empty(name: str) -> type:
    return type(name, (), {})


_module(
    "config",
    AttentionConfig=AttentionConfig,
    CompilationConfig=CompilationConfig,
    ParallelConfig=SimpleNamespace,
    VllmConfig=SimpleNamespace,
    get_current_vllm_config=lambda: _config.current,
)
_module(
    "config.compilation",
    CompilationMode=CompilationMode,
    CUDAGraphMode=CUDAGraphMode,
    PassConfig=PassConfig,
)
_module("outputs", RequestOutput=RequestOutput)
_module("sampling_params", RequestOutputKind=RequestOutputKind)
_module("logger", init_logger=logging.getLogger)
_module("compilation.decorators", support_torch_compile=_unchanged)
_module(
    "distributed",
    tensor_model_parallel_all_reduce=tensor_model_parallel_all_reduce,
    get_tp_group=lambda: _tensor_parallel,
)
_module("utils.torch_utils", weak_ref_tensor=lambda tensor: tensor)
_module("utils.math_utils", round_up=lambda x, y: -(-x // y) * y)
_module("model_executor.models.registry", ModelRegistry=ModelRegistry)
_module("model_executor.layers.attention", Attention=Attention)
_module("model_executor.layers.attention.attention", get_attention_context=None)
_module(
    "transformers_utils.config",
    PretrainedConfig=PretrainedConfig,
    register_config_parser=_unchanged,
)
_module("transformers_utils.config_parser_base", ConfigParserBase=_empty("ConfigParserBase"))
_module("v1.attention.backend", AttentionCGSupport=None, AttentionType=None)
_module(
    "v1.attention.backends.registry",
    AttentionBackendEnum=AttentionBackendEnum,
    register_backend=_unchanged,
)
_module(
    "v1.attention.backends.flash_attn",
    **{
        name: _empty(name)
        for name in (
            "FlashAttentionBackend",
            "FlashAttentionImpl",
            "FlashAttentionMetadata",
            "FlashAttentionMetadataBuilder",
        )
    },
)
_module("v1.worker.gpu_model_runner", GPUModelRunner=_empty("GPUModelRunner"))
_module("v1.worker.gpu_worker", Worker=_empty("Worker"))
