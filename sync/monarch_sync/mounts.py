"""Mounts: what somebody has mounted inside a folder.

A single file or folder that is mounted (a secret, a configuration in a container) can be written
to, and neither renamed nor replaced nor deleted, on whatever file system it lies.
"""

from __future__ import annotations

import os
import re

__all__ = ["mounted_inside"]

_TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and backslashes
_PLACE = 4


def mounted_inside(folder: str) -> set[str]:
    """Paths, relative to a folder, that something is mounted at; none where nobody tells."""
    try:
        with open(_TABLE, "rb", buffering=0) as file:
            table = file.read()
    except OSError:
        return set()
    above = os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
    places = (line.split(b" ")[_PLACE] for line in table.splitlines())
    plain = (_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), place) for place in places)
    return {os.fsdecode(place[len(above) :]) for place in plain if place.startswith(above)}
