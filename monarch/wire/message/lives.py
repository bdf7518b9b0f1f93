"""Membership: which processes there are, where they are, and which have ended."""

from __future__ import annotations

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message


class Hello(Message, tag=1):
    """First on every connection: the sender, and where to answer.

    It keeps this shape in all versions of the protocol, so that two that differ can say so.
    ``is_refusal``: it answers one of another version, and nothing will follow it.
    """

    proc: ProcAddress
    version: int
    is_refusal: bool = False


class Introduce(Message, tag=64):
    """Where a process is that speaks to you through others."""

    proc: ProcAddress


class Heartbeat(Message, tag=7):
    """I am alive, and expect the same of you."""

    sender: Uid


class Watch(Message, tag=4):
    """Tell me when this proc is up, and when it is down. To its host agent."""

    uid: Uid
    watcher: ProcAddress


class WatchHost(Message, tag=9):
    """From a proc to its own host agent: tell me when that other host agent is lost."""

    host: ProcAddress
    watcher: ProcAddress


class ProcUp(Message, tag=5):
    """A proc listens and may be sent to."""

    proc: ProcAddress
    pid: int


class Imported(Message, tag=83):
    """A proc tells its host agent what it imported of installed packages after its birth."""

    uid: Uid
    modules: tuple[str, ...]


class ProcDown(Message, tag=6):
    """A proc has ended, or never came up. ``expected`` where it was asked for.

    ``name`` is its mesh and rank, for people.
    """

    uid: Uid
    reason: str
    host: str = ""
    last_output: tuple[str, ...] = ()
    expected: bool = False
    name: str = ""
    log_file: str = ""


class ProcsDown(Message, tag=8):
    """Several procs have ended of one cause: told together, so that it is one report."""

    downs: tuple[ProcDown, ...]
    cause: str


class ProcAgain(Message, tag=82):
    """A proc has given way to a new one of its uid, for which ``ProcUp`` follows.

    ``is_clean``: it answered all that it had got before it ended.
    """

    uid: Uid
    name: str
    reason: str
    is_clean: bool = True
