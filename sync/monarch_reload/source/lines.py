"""The bytes of a source as the lines that Python counts. Pure."""

from __future__ import annotations

import codecs
import re

_COOKIE = re.compile(rb"(?:[^\n]*\n)?[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def decoded_lines(source: bytes) -> list[str]:
    # Form feeds and the like end a line for str.splitlines, not for Python.
    cookie = _COOKIE.match(source)
    encoding = cookie.group(1).decode() if cookie else "utf-8"
    text = source.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n")


def is_plain(source: bytes) -> bool:
    """Return whether a source is valid UTF-8 and has neither a byte-order mark nor an encoding
    comment."""
    if source.startswith(codecs.BOM_UTF8) or _COOKIE.match(source):
        return False
    try:
        source.decode()
    except UnicodeDecodeError:
        return False
    return True
