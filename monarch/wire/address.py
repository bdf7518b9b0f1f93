"""Addresses of processes, actors and ports, in messages and inside pickled references."""

from __future__ import annotations

import msgspec

Uid = str  # of a process or a mesh; no other has it


class ProcAddress(msgspec.Struct, frozen=True, array_like=True):
    """One process: its uid, and where it listens.

    ``urls`` is empty while the process is still coming up; then ``host_urls`` says where the
    host agent listens that knows. ``machine`` tells whether a Unix socket can reach it.
    """

    uid: Uid
    urls: tuple[str, ...] = ()
    machine: str = ""
    host_uid: Uid = ""
    host_urls: tuple[str, ...] = ()


class PortAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address of an answer: a process, and a port number that it gave out.

    ``is_channel``: what arrives is kept until it is asked for.
    """

    proc: ProcAddress
    port: int
    is_channel: bool = False
