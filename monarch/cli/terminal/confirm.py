"""Questions to the person at the terminal."""

from __future__ import annotations

import sys

import click


def ask_before(question: str, is_agreed: bool) -> bool:
    """Return whether a person agrees, by an option or at a terminal; False if there is no terminal.

    Raises ``click.Abort`` for a no.
    """
    if is_agreed:
        return True
    return is_somebody_there() and click.confirm(question, abort=True)


def is_somebody_there() -> bool:
    """Whether there is a terminal at which a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()
