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
        said = str(error)
    except Exception:  # A class of the user's, which has a fault of its own.
        said = ""
    if said[:1].isspace():
        # As in torch's pipelines, which put a stage's values around the error that it raised.
        if error.__cause__ is not None:
            return in_words(error.__cause__)
        said = said.strip()
    return f"{type(error).__name__}: {_in_short(said)}".removesuffix(": ")


def _in_short(said: str) -> str:
    """Shorten a CUDA error to one line: the others are the same for every error, about
    debugging."""
    first, _, rest = said.partition("\n")
    if not first.startswith("CUDA error") or not rest:
        return said
    if "device-side assert" in first:
        return f"{first} (a kernel has found a value that cannot be; it printed which)"
    return first
