"""What a new proc is told at birth."""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid

__all__ = ["ProcConfig"]


class ProcConfig(msgspec.Struct):
    """``env`` changes the template's environment (``None`` takes a variable out); ``path`` are
    the author's import folders, which come last; ``workspace`` is the replica's root, if the
    host has one, and ``workspace_path`` its import folders, which come first."""

    uid: Uid
    mesh: Uid
    name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    host: ProcAddress
    listen: tuple[str, ...]
    secret: str = ""
    env: dict[str, str | None] = {}
    path: tuple[str, ...] = ()
    directory: str = ""
    workspace: str = ""
    workspace_path: tuple[str, ...] = ()
    generation: int = 0
