"""The policy: a small causal transformer over characters, with an optional KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

PAD, BEGIN, END = 0, 2, 3  # the codes of NUL, STX and ETX in ASCII
VOCABULARY_SIZE = 128


def encode(text: str) -> list[int]:
    """Return the tokens of a text: the codes of its ASCII characters.

    Raises ValueError for other characters.
    """
    tokens = [ord(character) for character in text]
    if any(not 3 < token < VOCABULARY_SIZE for token in tokens):
        raise ValueError(f"the policy reads and writes ASCII only, and this is not: {text!r}")
    return tokens


def decode(tokens: Sequence[int]) -> str:
    """Return the text of tokens, without padding, BEGIN and END."""
    return "".join(chr(token) for token in tokens if token > END)


class Cache:
    """Keys and values of several sequences, one tensor of each for each block of the policy.

    A sequence has a slot. ``lengths`` (num_slots) has the number of filled positions of each slot.
    """

    def __init__(self, policy: Policy, num_slots: int, num_positions: int) -> None:
        weight = policy.tokens.weight
        shape = (num_slots, policy.num_heads, num_positions, policy.width // policy.num_heads)
        self.keys = [weight.new_zeros(shape) for _ in policy.blocks]
        self.values = [weight.new_zeros(shape) for _ in policy.blocks]
        self.lengths = torch.zeros(num_slots, dtype=torch.long, device=weight.device)


class PolicyBlock(nn.Module):  # type: ignore[misc]
    """A transformer block: attention, then two linear layers, each with a residual connection."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: tuple[Tensor, Tensor] | None = None,
        at: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the outputs for ``x`` (N, T, width).

        Without a cache, attention is causal within ``x``. With one, the keys and values of ``x``
        are put into it at ``at`` (slots, positions), and attention goes to the positions that
        ``mask`` allows.
        """
        q, k, v = self.to_qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        if cache is None:
            heads = functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
            )
        else:
            assert at is not None
            keys, values = cache
            slots, positions = at
            keys[slots[:, None], :, positions] = k
            values[slots[:, None], :, positions] = v
            most = int(positions.max()) + 1
            heads = functional.scaled_dot_product_attention(
                q.transpose(1, 2), keys[slots, :, :most], values[slots, :, :most], attn_mask=mask
            )
        x = x + self.from_heads(heads.transpose(1, 2).flatten(-2))
        hidden = functional.gelu(self.up(self.norm_2(x)))
        return x + self.down(hidden)


class Policy(nn.Module):  # type: ignore[misc]
    """Maps tokens (N, T) to logits (N, T, V). The output layer shares the embedding's weights."""

    def __init__(self, width: int, num_blocks: int, num_heads: int, num_positions: int) -> None:
        super().__init__()
        self.width, self.num_heads, self.num_positions = width, num_heads, num_positions
        self.tokens = nn.Embedding(VOCABULARY_SIZE, width)
        self.positions = nn.Embedding(num_positions, width)
        self.blocks = nn.ModuleList(PolicyBlock(width, num_heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY_SIZE, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=1 / math.sqrt(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of whole sequences, padded on the right.

        Raises ValueError if they are longer than the policy's positions.
        """
        if tokens.shape[1] > self.num_positions:
            raise ValueError(
                f"a sequence of {tokens.shape[1]} tokens does not fit into the "
                f"num_positions = {self.num_positions} of the policy"
            )
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def extend(self, tokens: Tensor, cache: Cache, slots: Tensor, lengths: Tensor) -> Tensor:
        """Append tokens to the sequences in these slots.

        Return the logits after each one's last token. ``tokens`` (N, T) are padded on the right;
        ``lengths`` (N) is the number of tokens in each row.
        """
        start = cache.lengths[slots]
        positions = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        positions = positions.clamp(max=self.num_positions - 1)
        x = self.tokens(tokens) + self.positions(positions)
        most = int(positions.max()) + 1
        mask = torch.arange(most, device=tokens.device) <= positions[:, :, None]
        for number, block in enumerate(self.blocks):
            block_cache = cache.keys[number], cache.values[number]
            x = block(x, mask[:, None], block_cache, (slots, positions))
        cache.lengths[slots] = start + lengths
        last = x[torch.arange(len(slots), device=x.device), lengths - 1]
        return self.head(self.norm(last))


def log_probs_of(logits: Tensor, tokens: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the log-probability of each token, with the logits divided by the temperature."""
    scaled = functional.log_softmax(logits.float() / temperature, dim=-1)
    return scaled.gather(-1, tokens[..., None]).squeeze(-1)
