"""A small Llama with its data, loss and schedule, for you to edit, even while it trains.

`titan.toml` names this module and one of its config functions, `mini` or `test`. Save this file
while `monarch sync --watch` runs, and all ranks use the edit from their next step on, with weights
and optimizer kept. A change of a config function takes effect when the model is built again.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path

from datasets import Dataset
from torch import nn
from torchtitan.components.loss import CrossEntropyLoss, cross_entropy_loss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.validate import Validator
from torchtitan.config import TrainingConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models.common import (
    ComplexRoPE,
    Embedding,
    Linear,
    RMSNorm,
    compute_ffn_hidden_dim,
)
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
)
from torchtitan.models.llama3 import Llama3Model, model_registry
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.trainer import Trainer

from monarch_recipes.schedule import learning_rate_factor

VOCABULARY = 1024


class TinyLlama(Llama3Model):
    """TorchTitan's Llama, with a forward pass to edit."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        pass

    def forward(self, tokens, positions=None, attention_masks=None):
        """Return the logits (N, T, vocabulary) of tokens (N, T)."""
        return super().forward(tokens, positions, attention_masks)


def compute_loss(logits, labels, *, global_vocab_size=None):
    """Return the sum of the loss over all tokens; TorchTitan divides it by their number."""
    return cross_entropy_loss(logits, labels, global_vocab_size=global_vocab_size)


class TinyLoss(CrossEntropyLoss):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(CrossEntropyLoss.Config):
        pass

    def __init__(self, config, *, compile_config=None):
        super().__init__(config)
        self.fn = compute_loss
        self._maybe_compile(compile_config)


def rate_factor(num_warmup_steps, num_steps, step):
    """Return the factor on the learning rate in `step`, counted from 0."""
    return learning_rate_factor(step, num_warmup_steps, num_steps)


class Schedule(LRSchedulersContainer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        def build(self, *, optimizers, training_steps):
            factor = partial(rate_factor, self.warmup_steps, self.total_steps or training_steps)
            return LRSchedulersContainer(optimizers, factor)


def load_texts(folder):
    """Return the documents of a folder: lines of JSON, each with a `text`."""
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.open()]
    return Dataset.from_list([json.loads(line) for line in lines])


def text_of(document):
    return document["text"]


DATASETS["texts"] = DatasetConfig(path="", loader=load_texts, sample_processor=text_of)


def mini():
    """Return a config with a model of 1.0 million parameters."""
    return config("mini", dim=128, n_layers=4)


def test():
    """Return a config with an even smaller model: 2 layers of width 64."""
    return config("test", dim=64, n_layers=2)


def config(flavor, dim, n_layers, n_heads=4):
    """Return a config of TorchTitan. The values of `titan.toml` are set in it afterwards."""
    spec = model_registry("debugmodel")
    return Trainer.Config(
        model_spec=dataclasses.replace(
            spec, name="tiny_llama", flavor=flavor, model=sizes(dim, n_layers, n_heads)
        ),
        loss=TinyLoss.Config(global_vocab_size=VOCABULARY),
        optimizer=default_adamw(lr=6e-3),
        lr_scheduler=Schedule.Config(warmup_steps=10),
        training=TrainingConfig(mixed_precision_param="float32"),
        activation_checkpoint=None,
        dataloader=HuggingFaceTextDataLoader.Config(dataset="texts"),
        validator=Validator.Config(
            dataloader=HuggingFaceTextDataLoader.Config(dataset="texts", infinite=False)
        ),
    )


def sizes(dim, n_layers, n_heads):
    def norm():
        return RMSNorm.Config(normalized_shape=dim, param_init={"weight": nn.init.ones_})

    return TinyLlama.Config(
        dim=dim,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=dim, param_init=normal(1.0)
        ),
        norm=norm(),
        lm_head=Linear.Config(
            in_features=dim, out_features=VOCABULARY, param_init=normal(dim**-0.5)
        ),
        layers=[
            Llama3TransformerBlock.Config(
                attention_norm=norm(),
                ffn_norm=norm(),
                attention=make_gqa_config(
                    dim=dim,
                    n_heads=n_heads,
                    wqkv_param_init=normal(0.02),
                    wo_param_init=normal(0.02 / (2 * (layer + 1)) ** 0.5),
                    inner_attention=get_attention_config("flex"),
                    fuse_qkv=True,
                    rope=ComplexRoPE.Config(
                        dim=dim // n_heads, max_seq_len=2048, theta=10000, scaling="none"
                    ),
                ),
                feed_forward=make_ffn_config(
                    dim=dim,
                    hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=32),
                    w1_param_init=normal(0.02),
                    w2w3_param_init=normal(0.02 / (2 * (layer + 1)) ** 0.5),
                ),
            )
            for layer in range(n_layers)
        ],
    )


def normal(std):
    """Return the initial values of a layer: a truncated normal for weights, zeros for biases."""
    return {
        "weight": partial(nn.init.trunc_normal_, std=std, a=-3 * std, b=3 * std),
        "bias": nn.init.zeros_,
    }
