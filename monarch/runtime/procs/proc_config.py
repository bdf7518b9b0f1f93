"""The configuration of a new proc, passed when it starts."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import BreakPlace, Command

CONTROL_FD = "MONARCH_CONTROL_FD"
"""Names the template's end of its control socket. In the environment, to pass through wrappers."""

MAX_PACKET_BYTES = 160 * 1024
"""How long an order to a template process may be."""


class ProcConfig(msgspec.Struct, kw_only=True):
    """The configuration of a proc.

    ``env`` changes the template's environment (``None`` removes a variable). ``path`` are the
    author's import folders, which come last. ``workspace`` is the replica's root, if the host has
    one, and ``workspace_path`` its import folders, which come first. ``bind`` is as in
    ``runtime.procs.binding``; ``command`` starts the templates for procs that this proc spawns on
    its host. ``is_quiet``: the owner need not hear that the proc is up. ``config`` are the settings
    that the owner has changed. ``life`` counts the earlier processes of this uid. ``codes`` is as
    in ``SpawnProcs``; ``breaks`` are the breakpoints that are set from the beginning.
    """

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
    host_bind: str = ""
    """Where the host agent listens, if this machine may know its name by another address."""
    secret: str = ""
    env: dict[str, str | None] = {}
    path: tuple[str, ...] = ()
    directory: str = ""
    workspace: str = ""
    workspace_path: tuple[str, ...] = ()
    generation: int = 0
    root: ProcAddress | None = None
    bind: dict[str, str] = {}
    command: Command | None = None
    is_quiet: bool = False
    config: dict[str, Any] = {}
    log_level: int = logging.INFO
    insecure: bool = False
    life: int = 0
    codes: tuple[HostCode, ...] = ()
    breaks: tuple[BreakPlace, ...] = ()

    def __repr__(self) -> str:
        return f"ProcConfig({self.uid}, {self.name} {self.rank})"  # Not the secret.


def encode_order(order: dict[str, Any]) -> bytes:
    """Return an order to a template process as bytes, which `decode_order` reads. Raises
    ``ValueError`` if a string cannot be encoded."""
    try:
        return msgspec.json.encode(order)
    except UnicodeEncodeError:
        # In a path that is no UTF-8; it travels as it is.
        text = json.dumps(msgspec.to_builtins(order), ensure_ascii=False)
        return text.encode("utf-8", "surrogateescape")


def decode_order(data: bytes) -> dict[str, Any]:
    """Return the order in bytes that `encode_order` made."""
    try:
        order: dict[str, Any] = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        order = json.loads(data.decode("utf-8", "surrogateescape"))
    return order
