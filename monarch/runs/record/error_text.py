"""An error, as one would tell a person of it."""

from __future__ import annotations

from monarch.config_file import ConfigError
from monarch.errors import MonarchError


def in_words(error: BaseException) -> str:
    """The text of an error. Errors of ours say all; of others the name of the kind says the
    most."""
    if isinstance(error, ConfigError):
        return f"'{error.key}' {error}" if error.key and not error.path else str(error)
    if isinstance(error, MonarchError):
        return str(error)
    try:
        said = str(error)
    except Exception:  # A class of the user's, which has a fault of its own.
        said = ""
    if said[:1].isspace():
        # As of torch's pipelines, which put the values of a stage around what it raised.
        if error.__cause__ is not None:
            return in_words(error.__cause__)
        said = said.strip()
    return f"{type(error).__name__}: {_in_short(said)}".removesuffix(": ")


def _in_short(said: str) -> str:
    """What CUDA says in one line: the others are the same for every error, and about debugging."""
    first, _, rest = said.partition("\n")
    if not first.startswith("CUDA error") or not rest:
        return said
    if "device-side assert" in first:
        return f"{first} (a kernel has found a value that cannot be; it printed which)"
    return first
