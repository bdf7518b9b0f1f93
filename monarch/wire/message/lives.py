"""Membership: which processes there are, where they are, and which have ended."""

from __future__ import annotations

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message


class Hello(Message, tag=1):
    """The first message on every connection: who the sender is, and where to answer.

    It has the same shape in all versions of the protocol, so that a receiver of another version can
    read the sender's version. ``is_refusal``: it answers a ``Hello`` of another version, and no
    message will follow.
    """

    proc: ProcAddress
    version: int
    is_refusal: bool = False


class Introduce(Message, tag=64):
    """The address of a process whose messages come through other processes."""

    proc: ProcAddress


class Heartbeat(Message, tag=7):
    """The sender is alive, and expects heartbeats in return."""

    sender: Uid


class Watch(Message, tag=4):
    """To a host agent: report when this proc is up, and when it is down."""

    uid: Uid
    watcher: ProcAddress


class WatchHost(Message, tag=9):
    """From a proc to its own host agent: report when that other host agent is lost."""

    host: ProcAddress
    watcher: ProcAddress


class ProcUp(Message, tag=5):
    """A proc is up: it listens for messages."""

    proc: ProcAddress
    pid: int


class Imported(Message, tag=83):
    """From a proc to its host agent: the modules of installed packages that it has imported since
    it started."""

    uid: Uid
    modules: tuple[str, ...]


class ProcDown(Message, tag=6):
    """A proc has ended, or never started. ``expected``: its end was asked for.

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
    """Several procs have ended of one cause: one message, so that there is one report."""

    downs: tuple[ProcDown, ...]
    cause: str


class ProcAgain(Message, tag=82):
    """A proc was replaced by a new one with the same uid, for which ``ProcUp`` follows.

    ``is_clean``: it answered all messages that it had got before it ended.
    """

    uid: Uid
    name: str
    reason: str
    is_clean: bool = True
