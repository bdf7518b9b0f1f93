"""Names that say something about Monarch itself, and names for annotations."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

CA = bytes | Path | Literal["trust_all_connections"]
PrivateKey = bytes | Path | None
Propagator = Any
Selection = Literal["all", "choose"]

enabled = True
"""Whether meshes are those of Monarch's second generation."""


def has_tensor_engine() -> bool:
    """Whether there are distributed tensors: where torch is installed."""
    return find_spec("torch") is not None
