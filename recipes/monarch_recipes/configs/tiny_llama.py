"""A small Llama with its data, loss and schedule, for you to edit, even while it trains.

`titan.toml` names this module in `experimental.custom_import`. Save this file while `monarch sync
--watch` runs, and all ranks use the edit from their next step on, with weights and optimizer kept.
A change of the sizes in FLAVORS takes effect when the model is built again.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path

from datasets import Dataset
from torch.nn.functional import cross_entropy
from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models import llama3
from torchtitan.models.llama3 import Transformer, TransformerModelArgs

from monarch_recipes.schedule import learning_rate_factor
from monarch_recipes.titan import register_model

FLAVORS = {
    "mini": TransformerModelArgs(
        dim=128, n_layers=4, n_heads=4, vocab_size=1024, multiple_of=32, rope_theta=10000
    ),
    "test": TransformerModelArgs(
        dim=64, n_layers=2, n_heads=4, vocab_size=1024, multiple_of=32, rope_theta=10000
    ),
}


class TinyLlama(Transformer):
    """TorchTitan's Llama, with a forward pass to edit."""

    def forward(self, tokens, attention_masks=None, positions=None):
        """Return the logits (N, T, vocabulary) of tokens (N, T)."""
        return super().forward(tokens, attention_masks, positions)


def compute_loss(logits, labels):
    """Return the sum of the loss over all tokens; the trainer divides it by their number."""
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum")


def build_loss(job_config, **others):
    return compute_loss


def rate_factor(num_warmup_steps, num_steps, step):
    """Return the factor on the learning rate in `step`, counted from 0."""
    return learning_rate_factor(step, num_warmup_steps, num_steps)


def build_schedule(optimizers, config, num_steps):
    factor = partial(rate_factor, config.warmup_steps, config.total_steps or num_steps)
    return LRSchedulersContainer(optimizers, factor)


def load_texts(folder):
    """Return the documents of a folder: lines of JSON, each with a `text`."""
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.open()]
    return Dataset.from_list([json.loads(line) for line in lines])


def text_of(document):
    return document["text"]


register_model(
    "tiny_llama",
    dataclasses.replace(
        llama3.get_train_spec(),
        model_cls=TinyLlama,
        model_args=FLAVORS,
        build_loss_fn=build_loss,
        build_lr_schedulers_fn=build_schedule,
    ),
)
DATASETS["texts"] = DatasetConfig(path="", loader=load_texts, sample_processor=text_of)
