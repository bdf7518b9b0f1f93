"""Names that state facts of Monarch itself, and names for annotations."""

from __future__ import annotations

import socket as socket
import subprocess as subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

CA = bytes | Path | Literal["trust_all_connections"]
PrivateKey = bytes | Path | None
Propagator = Any
Selection = Literal["all", "choose"]

enabled = True
"""Whether meshes are those of Monarch's second generation."""


IN_PAR = False
"""Whether the program is one file of Meta's build system."""

_pending_flush_tasks: set[Any] = set()
"""Tasks that flush logs in notebooks: none, since printed lines are not buffered here."""


def _is_in_tokio_runtime() -> bool:
    return False


def has_tensor_engine() -> bool:
    """Whether there are distributed tensors: whether torch is installed."""
    return find_spec("torch") is not None
