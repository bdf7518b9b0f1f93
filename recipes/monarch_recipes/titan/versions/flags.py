"""Calls TorchTitan's parser of command-line flags."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from monarch.config_file import ConfigError


def parsed(parse: Callable[[list[str]], Any], flags: Sequence[str]) -> Any:
    """Return what ``parse`` makes of the flags.

    Raises ConfigError for flags at which TorchTitan's command line would end the program.
    """
    text = io.StringIO()
    try:
        with redirect_stderr(text), redirect_stdout(text):
            return parse(list(flags))
    except SystemExit:
        raise ConfigError(_plain(text.getvalue())) from None
    except (AssertionError, ImportError, OSError, ValueError) as error:
        raise ConfigError(f"TorchTitan refuses its config: {error}") from error


def _plain(text: str) -> str:
    """Return a text that tyro printed, without its frame and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = (line.strip("│╭╮╰╯─ ") for line in text.splitlines())
    return "\n".join(line for line in lines if line)
