"""Escape codes of colours, at ``monarch.tools.colors``; empty if the output is no terminal."""

from __future__ import annotations

import sys

_SHOWS = not sys.stdout.closed and sys.stdout.isatty()


def _code(code: str) -> str:
    return f"\033[{code}m" if _SHOWS else ""


GREEN = _code("32")
BLUE = _code("34")
CYAN = _code("36")
ORANGE = _code("38:2:238:76:44")
GRAY = _code("2")
ENDC = _code("0")
