"""A language model of bytes: a small GRU learns how Python's own documentation is written.

    cd examples/tasks
    monarch run ddp --config letters.toml
    monarch run fault_tolerant task=letters learning_rate=1e-2

The text comes with Python. Paragraphs differ in length, so the loss is (sum, number of bytes): a
byte counts the same in whichever micro-batch, on whichever rank it is.
"""

from __future__ import annotations

import math
import random
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from monarch_recipes.samples import Data
from monarch_recipes.tally import MASKED, Weighted

LONGEST = 96  # bytes of a paragraph that are read
NUM_PARAGRAPHS = 2048


def load_data(config: Any) -> Data:
    """Return paragraphs as pairs: bytes, and the byte that follows each."""
    paragraphs = [part.strip() for text in topics.values() for part in text.split("\n\n")]
    random.Random(config.data_seed).shuffle(paragraphs)
    samples = []
    for paragraph in [part for part in paragraphs if len(part) > 10][:NUM_PARAGRAPHS]:
        letters = torch.tensor(list(paragraph.encode()[: LONGEST + 1]))
        samples.append((letters[:-1], letters[1:]))
    num_held_out = round(len(samples) * config.held_out_fraction)
    return Data(samples[num_held_out:], samples[:num_held_out])


def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad paragraphs to the longest one. Positions after the end of a paragraph are masked."""
    inputs, labels = zip(*samples, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return (
        pad(list(inputs), batch_first=True),
        pad(list(labels), batch_first=True, padding_value=MASKED),
    )


class Letters(nn.Module):
    """Maps bytes (N, T) to logits of the next bytes (N, T, 256)."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 256)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        remembered, _ = self.memory(self.embedding(letters))
        logits: torch.Tensor = self.output(self.norm(remembered))
        return logits


def build_model(config: Any) -> nn.Module:
    return Letters()


def build_optimizer(config: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW, without weight decay of vectors such as biases and norms."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay_scale": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> Weighted:
    total = functional.cross_entropy(
        logits.reshape(-1, 256), labels.reshape(-1), ignore_index=MASKED, reduction="sum"
    )
    return total, (labels != MASKED).sum()


def metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
    total, num_bytes = compute_loss(logits, labels)  # type: ignore[misc]
    return {"bits_per_byte": (total / math.log(2), num_bytes)}
