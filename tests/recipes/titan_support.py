"""Helpers of the titan recipe's tests. Import it before anything else that uses TorchTitan."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest

if find_spec("torchtitan") is None:
    pytest.skip(
        "torchtitan is not installed: pip install 'monarch-loop[titan]'", allow_module_level=True
    )
with warnings.catch_warnings():
    # Of torch, and of what TorchTitan imports; ours are errors where they come from.
    warnings.simplefilter("ignore")
    from monarch_recipes.titan.versions import titan

IS_0_3 = titan.keys.output == "dump_folder"
_GONE = ("validation.local_batch_size=", "validation.seq_len=")  # as in training, with 0.3
# Lines of tiny_llama.py.
FORWARD = "        return super().forward(tokens, attention_masks, positions)\n"
LOSS = "def compute_loss(logits, labels):\n"
if IS_0_3:
    FORWARD = "        return super().forward(tokens, positions, attention_masks)\n"
    LOSS = "def compute_loss(logits, labels, *, global_vocab_size=None):\n"
RETURN_LOSS = "    return cross_entropy"  # the beginning of the line


def keys(*overrides: str) -> list[str]:
    """Overrides under the names of TorchTitan 0.2, for the one that is installed. Most of these
    names are read with 0.3 too."""
    if not IS_0_3:
        return [*overrides]
    return [
        override.replace("model.flavor=", "config=").replace("experimental.custom_import", "module")
        for override in overrides
        if not override.startswith(_GONE)
    ]


def flavor(name: str) -> str:
    return keys(f"model.flavor={name}")[0]
