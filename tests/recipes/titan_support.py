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
    import monarch_recipes.titan  # noqa: F401
