"""Bulletins: news of a host, which its agent keeps for listeners."""

from __future__ import annotations

from typing import Any

import msgspec


class Bulletin(msgspec.Struct, frozen=True):
    """News about code on a host.

    ``key`` names the subject, as ``run /home/me/runs/ddp-1`` or ``workspace``, and ``kind`` says
    what happened to it: ``held``, ``mended``, ``committed``. ``text`` is for people, ``data`` for
    programs: values that JSON can represent. If ``stands`` is true, it is also sent to later
    listeners, until there is another bulletin with its key or its sender has left. The host assigns
    ``number`` and ``time``, in seconds since the epoch.
    """

    key: str
    kind: str
    text: str = ""
    generation: int = 0
    stands: bool = False
    data: dict[str, Any] = {}
    number: int = 0
    time: float = 0.0
