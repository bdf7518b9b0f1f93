"""How long members of groups wait for each other.

This imports no torch, so that configs can be read without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from monarch.config_file import ConfigError


@dataclass(frozen=True)
class MemberTimeouts:
    """How many seconds a member waits for others: in a collective, for a quorum, in a whole
    step.
    """

    collective_seconds: float
    quorum_seconds: float
    step_seconds: float


def check_timeouts(*, collective: float, join: float, quorum: float) -> None:
    """Raise ConfigError if one of these times, in seconds, contradicts another."""
    if join < collective:
        raise ConfigError(
            f"must not be less than collective_timeout_seconds ({collective:g}): a group that "
            "still waits for a dead one's gradients would be left out of the quorum, and both "
            "would train apart",
            key="join_timeout_seconds",
        )
    if quorum <= join:
        raise ConfigError(
            f"must be more than join_timeout_seconds ({join:g})", key="quorum_timeout_seconds"
        )
