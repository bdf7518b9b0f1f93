"""The text of an error for a person."""

from __future__ import annotations

from monarch.config_file import ConfigError
from monarch.errors import MonarchError


def in_words(error: BaseException) -> str:
    """Return the text of an error, with its class's name unless it is one of our own errors."""
    if isinstance(error, ConfigError):
        return f"'{error.key}' {error}" if error.key and not error.path else str(error)
    if isinstance(error, MonarchError):
        return str(error)
    try:
        text = str(error)
    except Exception:  # The user's class has a fault of its own.
        text = ""
    if text[:1].isspace():
        # For example from torch's pipelines, which add a stage's values to its error.
        if error.__cause__ is not None:
            return in_words(error.__cause__)
        text = text.strip()
    return f"{type(error).__name__}: {_in_short(text)}".removesuffix(": ")


def _in_short(text: str) -> str:
    """Shorten a CUDA error to its first line: its other lines are general advice on debugging.

    Returns all other texts as they are.
    """
    first, _, advice = text.partition("\n")
    if not first.startswith("CUDA error") or not advice:
        return text
    if "device-side assert" in first:
        return f"{first} (a kernel has found a value that cannot be; it printed which)"
    return first
