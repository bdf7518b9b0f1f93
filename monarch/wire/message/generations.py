"""A workspace's way to the hosts, and the change of code that follows it."""

from __future__ import annotations

from enum import Enum

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message.header import Message


class Onward(msgspec.Struct, array_like=True, frozen=True):
    """A host that is to be passed a message, and the sender's port for its answer."""

    host: ProcAddress
    port: int


class Sync(Message, tag=28):
    """One message of a workspace push, opaque here; its blobs travel as buffers.

    ``folders`` are the landing places of the workspace's folders below the replica's root, and
    ``pid`` is the author's, whose end is to be noticed. The host passes it to ``onward``, in
    ``degree`` shares. An owner that carries a push through orders on behalf of its ``author``.
    """

    port: int
    sender: Uid
    folders: tuple[str, ...] = ()
    pid: int = 0
    onward: tuple[Onward, ...] = ()
    degree: int = 1
    author: Uid = ""


class Bring(Message, tag=51, kw_only=True):
    """From a host agent to its client: procs are to be made here that are meant for the workspace
    ``wanted``, and what is here is ``digest``. Bring it.
    """

    host: ProcAddress
    generation: int
    digest: str
    wanted: str
    num_running: int
    port: int
    sender: Uid


class Share(Message, tag=52):
    """To a host agent whose folder another host writes: look whether it has come to this state.

    Payload: paths and digests of what has changed.
    """

    generation: int
    digest: str
    folders: tuple[str, ...]
    port: int
    sender: Uid


class TakeBack(Message, tag=50):
    """To a host agent: back to the files before ``generation``, if that is what is there."""

    generation: int
    port: int
    sender: Uid


class AuditAsked(Message, tag=179):
    """To a process: what runs old code there, and in those that it owns, since the switch to
    ``generation``? ``Answer`` comes when its audit is in."""

    generation: int
    port: int
    sender: Uid


class Prepare(Message, tag=44):
    """To an owner or a proc: get a generation ready. Payload: the changed files.

    ``pid`` is that of an author elsewhere, whose end is to be noticed.
    """

    generation: int
    digest: str
    mode: str
    port: int
    sender: Uid
    pid: int = 0


class Switch(Message, tag=45, kw_only=True):
    """To an owner or a proc: the generation begins here. Ordered like a call.

    Answered once every actor is done with what came before; later messages wait. ``holds``: the
    proc gives way to a new one of its uid, and what is sent to it after this is for that one.
    ``attempt`` counts how often it was cast: one that was given up says nothing any more. An owner
    gives it up ``seconds`` after it has begun to hold an actor up.
    """

    generation: int
    port: int
    sender: Uid
    holds: bool = False
    attempt: int = 1
    seconds: float = 0.0


class StepName(str, Enum):
    """A later step of a ``Switch``; by the names of ``monarch.core.code_switch``."""

    HALT = "halt"
    RESUME = "resume"
    LIFT = "lift"
    PATCH = "patch"
    GO = "go"
    SWITCH = "switch"


class Step(Message, tag=47, kw_only=True):
    """To a process that has prepared: the next step. ``SWITCH``: an owner is to drive the whole
    switch of its procs, and answers when that is over. The other steps are for its procs.

    ``HALT``: actors take up no message, within ``seconds``. ``RESUME``: as before the halt.
    ``LIFT``: as before the ``Switch`` of this ``attempt``, which is given up. ``PATCH``: change
    the code; procs on hosts that are ``behind`` go back instead. ``GO``: run it.
    """

    generation: int
    name: StepName
    seconds: float
    port: int
    sender: Uid
    attempt: int = 0
    behind: tuple[Uid, ...] = ()


class Revert(Message, tag=46):
    """To an owner or a proc: drop a generation that was prepared. An owner that drives its switch
    stops, unless it is decided; it answers when it is over."""

    generation: int
    port: int
    sender: Uid


class BusyActor(msgspec.Struct, array_like=True, frozen=True):
    """One that a push waits for. ``method`` is what it is in, in words."""

    name: str
    rank: int
    method: str


class Waiting(Message, tag=49):
    """To the process that asked for a change of generation: what it has waited for, so long."""

    generation: int
    busy: tuple[BusyActor, ...]
    seconds: float


class HeldUp(Message, tag=53):
    """To the process that asked for a ``Switch``: an actor waits behind it, and is held up."""

    generation: int
    attempt: int


class LeftBehind(Message, tag=54):
    """To a proc on a host that could not follow a push: what runs where now, as its owner knows."""

    codes: tuple[HostCode, ...]
