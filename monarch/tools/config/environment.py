"""Environments that a workspace's code is developed in, by name only: none is copied."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["CondaEnvironment", "Environment"]


class Environment:
    """Some installation of what the code needs."""


@dataclass(frozen=True)
class CondaEnvironment(Environment):
    """A conda environment; the active one where no prefix is given."""

    _conda_prefix: str | None = None

    def __init__(self, conda_prefix: str | None = None) -> None:
        object.__setattr__(self, "_conda_prefix", conda_prefix)

    @property
    def conda_prefix(self) -> str:
        """Its folder. Raises ``AssertionError``, as Monarch does, where none was given and none is
        active."""
        prefix = self._conda_prefix or os.environ.get("CONDA_PREFIX")
        if not prefix:
            raise AssertionError("no conda environment is active: activate one, or give its prefix")
        return prefix
