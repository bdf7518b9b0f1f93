"""Every message of the protocol, in one table.

A message is a header (one of these structs), and, for those that carry user data, a payload
with buffers beside it. Headers hold only what agents need to route, order and account; they
never hold pickles. Validity is checked where a header is decoded, and trusted afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.wire.address import ProcAddress, Uid

PROTOCOL_VERSION = 1

PING = ""
"""The method that every actor has: it answers once ``__init__`` has returned."""


class Message(msgspec.Struct, array_like=True):
    """Base of all headers."""


# Between any two processes.


class Hello(Message, tag=1):
    """First on every connection: who speaks, and where to answer."""

    proc: ProcAddress
    version: int


class Call(Message, tag=2):
    """Run an endpoint. Payload: the arguments. ``port`` 0 means that nobody waits."""

    actor: Uid
    method: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    sender: Uid
    sender_actor: Uid
    port: int = 0
    port_proc: ProcAddress | None = None
    explicit_response_port: bool = False


class Reply(Message, tag=3):
    """Into a port. Payload: a value, or an exception where ``failed``.

    ``refused``: the actor is dead, so that a call to it and others need wait for nobody.
    """

    port: int
    rank: int
    sender: Uid
    failed: bool = False
    refused: bool = False


class Watch(Message, tag=4):
    """Tell me when this proc is up, and when it is down. To its host agent."""

    uid: Uid
    watcher: ProcAddress


class ProcUp(Message, tag=5):
    """A proc listens and may be sent to."""

    proc: ProcAddress
    pid: int


class ProcDown(Message, tag=6):
    """A proc has ended, or never came up. ``expected`` where somebody asked for it."""

    uid: Uid
    reason: str
    host: str = ""
    last_output: tuple[str, ...] = ()
    expected: bool = False


class Heartbeat(Message, tag=7):
    """I am alive, and expect the same of you."""

    sender: Uid


# A client and a host agent.


class Attach(Message, tag=20):
    """May I be your client? Answered by ``Answer``."""

    client: ProcAddress
    pid: int
    name: str
    port: int
    takeover: bool = False


class Detach(Message, tag=21):
    """The client leaves: stop its procs."""

    client: Uid


class ProcSpec(msgspec.Struct, array_like=True, frozen=True):
    """One proc to be made."""

    uid: Uid
    rank: int
    env: dict[str, str] = {}


class SpawnProcs(Message, tag=22):
    """Make procs for a mesh. Each answers with ``ProcUp`` to the owner, or ``ProcDown`` comes."""

    mesh: Uid
    name: str
    owner: ProcAddress
    owner_actor: Uid
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    procs: tuple[ProcSpec, ...]
    preload: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    python: str = ""


class StopProcs(Message, tag=23):
    """Stop these procs: ask first, kill after ``grace_seconds``."""

    uids: tuple[Uid, ...]
    reason: str
    grace_seconds: float
    port: int
    sender: Uid


class Log(Message, tag=24):
    """Lines that a proc printed. ``label`` is what to put in front of each."""

    uid: Uid
    label: str
    stream: int
    lines: tuple[str, ...]


class Label(Message, tag=30):
    """From a proc to its host agent: what to put in front of its output."""

    uid: Uid
    label: str


class Preload(Message, tag=25):
    """Have a template process with these modules imported ready for later spawns."""

    modules: tuple[str, ...]
    port: int
    sender: Uid


class Shutdown(Message, tag=26):
    """End the host agent and all that it runs."""

    port: int
    sender: Uid


class Inspect(Message, tag=27):
    """What runs here? Answered by ``Answer`` with a dictionary."""

    port: int
    sender: Uid


class Sync(Message, tag=28):
    """One message of a workspace push, opaque here; its blobs travel as buffers.

    ``folders`` are the landing places of the workspace's folders below the replica's root.
    """

    port: int
    sender: Uid
    folders: tuple[str, ...] = ()


class Answer(Message, tag=29):
    """To a control message. ``body`` is data, ``error`` is text for people, never a pickle."""

    port: int
    sender: Uid
    body: dict[str, Any] = {}
    error: str = ""


# An owner and a proc.


class SpawnActor(Message, tag=40):
    """Make an actor. Payload: class and constructor arguments."""

    actor: Uid
    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    is_async: bool
    creator: str = ""


class StopActor(Message, tag=41):
    """End an actor after the messages before this one."""

    actor: Uid
    reason: str
    port: int
    sender: Uid


class ActorFailed(Message, tag=42):
    """To the owner: an actor has failed, and nobody was waiting for its answer."""

    actor: Uid
    rank: int
    name: str
    proc: Uid
    reason: str


class StopSelf(Message, tag=43):
    """To a proc: run the actors' cleanups and end."""

    reason: str


class Prepare(Message, tag=44):
    """To an owner or a proc: get a generation ready. Payload: the changed files."""

    generation: int
    digest: str
    mode: str
    port: int
    sender: Uid


class Switch(Message, tag=45):
    """To an owner or a proc: run the generation from here on. Ordered like a call."""

    generation: int
    port: int
    sender: Uid


class Revert(Message, tag=46):
    """To an owner or a proc: drop a generation that was prepared or switched to."""

    generation: int
    port: int
    sender: Uid


AnyMessage = (
    Hello | Call | Reply | Watch | ProcUp | ProcDown | Heartbeat | Attach | Detach | SpawnProcs
    | StopProcs | Log | Label | Preload | Shutdown | Inspect | Sync | Answer | SpawnActor
    | StopActor | ActorFailed | StopSelf | Prepare | Switch | Revert
)  # fmt: skip
