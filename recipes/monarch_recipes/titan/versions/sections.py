"""Config keys of the recipe's own, and checks for both versions of TorchTitan."""

# No `from __future__ import annotations`: TorchTitan looks at the types of its fields.

from dataclasses import dataclass
from typing import Any

from monarch.config_file import ConfigError, live


@dataclass
class OwnFaultTolerance:
    """The settings for ranks that die or hang: all ranks start again from the last checkpoint."""

    max_restarts: int = 5
    """Restarts in a row without a new checkpoint; 0 ends the run with the first loss."""

    fingerprint_every: int = live(100)
    """Replicas of a weight and of its optimizer state are compared every so many steps; with 0 only
    on new code, before saves and after resumes."""

    shadow_every: int = live(0)
    """The state is copied into the host's memory every so many steps, during the next step. A death
    then costs no more steps than that. 0 is never."""

    edit_patience_seconds: float | None = live(None)
    """A first step on new code that takes longer is reported; without a value, after
    MONARCH_EDIT_PATIENCE_SECONDS (30)."""

    def __post_init__(self) -> None:
        for key in ("max_restarts", "fingerprint_every", "shadow_every"):
            if getattr(self, key) < 0:
                raise ConfigError("must be at least 0", key=key)


GONE = {
    "fault_tolerance.save_before_edits": (
        "is gone: a step of new code that fails is put back in place, and nothing is saved for "
        "it. Take the key out"
    )
}


def check_at_least_1(section: Any, key: str, besides: str = "") -> None:
    """Raise ConfigError if the section's key is less than 1."""
    if getattr(section, key) < 1:
        raise ConfigError(f"must be at least 1{besides}", key=key)


def check_validation_steps(section: Any) -> None:
    """Raise ConfigError unless `steps` is at least 1, or -1 for all data."""
    if section.steps != -1:
        check_at_least_1(section, "steps", " (or -1: all there is)")
