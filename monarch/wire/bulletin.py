"""Bulletins: news of a host, which its agent keeps for listeners."""

from __future__ import annotations

from typing import Any

import msgspec


class Bulletin(msgspec.Struct, frozen=True):
    """Something that happened to code on a host.

    ``key`` is what it is about, as ``run /home/me/runs/ddp-1`` or ``workspace``, and ``kind`` what
    has become of that: ``held``, ``mended``, ``committed``. ``text`` is for people, ``data`` for
    programs, and holds what JSON can hold. It ``stands`` until there is another of its key, or its
    sender has left: then a later listener is told of it, too. ``number`` and ``time``, in seconds
    since the epoch, are given to it by the host.
    """

    key: str
    kind: str
    text: str = ""
    generation: int = 0
    stands: bool = False
    data: dict[str, Any] = {}
    number: int = 0
    time: float = 0.0
