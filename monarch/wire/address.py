"""Addresses of processes, actors and ports, in messages and inside pickled references."""

from __future__ import annotations

import msgspec

Uid = str  # of a process or a mesh; no other has it


class ProcAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address of one process: its uid, and where it listens.

    ``urls`` is empty while the process is still starting. Its host agent, which listens at
    ``host_urls``, then knows where it is. ``machine`` is the id of its machine: only processes
    there can reach it through a Unix socket.
    """

    uid: Uid
    urls: tuple[str, ...] = ()
    machine: str = ""
    host_uid: Uid = ""
    host_urls: tuple[str, ...] = ()


class PortAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address for an answer: a process, and the number of one of its ports.

    ``is_channel``: messages that arrive are kept until the receiver asks for them.
    """

    proc: ProcAddress
    port: int
    is_channel: bool = False
