"""What a code switch says to people."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.core.code_switch.effects import Reason

__all__ = ["said_of", "waits_for"]


def said_of(reason: Reason, about: str, seconds: float = 0.0) -> str:
    """Why an order was not carried out. ``about`` is a proc, or what an actor is busy with."""
    if reason is Reason.SILENT:
        return f"the process {about} has not answered for {seconds:g} s"
    if reason is Reason.BUSY:
        return (
            f"{about}, which is not its owner's call, and may wait for somebody who has stopped "
            "for the switch: nothing has changed; push again"
        )
    return f"{about} {reason.value}" if about else reason.value


def waits_for(generation: int, busy: Sequence[tuple[str, str]], seconds: float) -> str:
    """Whom a switch waits for: actors, and their methods. Empty where it is nobody here."""
    names = [f"{title} (in {method!r})" if method else title for title, method in busy]
    if not names:
        return ""
    shown = ", ".join(names[:3])
    few = shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
    return f"generation {generation} waits for {few}, for {seconds:g} s"
