"""A workspace's way to the hosts, and the change of code that follows it."""

from __future__ import annotations

from enum import Enum

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message.header import Body, Message, Request


class Onward(msgspec.Struct, array_like=True, frozen=True):
    """A host that a message is passed on to, and the sender's port for its answer."""

    host: ProcAddress
    port: int


class SyncAnswer(msgspec.Struct):
    """The ``reply``, opaque here. Where something was staged: the landing places of ``packages`` by
    path, and the client whose processes are to change with the files."""

    reply: bytes
    root: str = ""
    host: str = ""
    packages: tuple[tuple[str, str], ...] = ()
    client_address: ProcAddress | None = None
    is_staged: bool = False


class Sync(Request[SyncAnswer], tag=28):
    """One message of a workspace push, opaque here; its blobs travel as buffers.

    ``folders`` are the landing places of the workspace's folders below the replica's root, and
    ``pid`` is the author's, whose end must be noticed. The host passes it to ``onward``, in
    ``degree`` shares. An owner that carries a push through orders on behalf of its ``author``.
    """

    folders: tuple[str, ...] = ()
    pid: int = 0
    onward: tuple[Onward, ...] = ()
    degree: int = 1
    author: Uid = ""


class Bring(Request[str], tag=51, kw_only=True):
    """From a host agent to its client: procs must be made here that are meant for the workspace
    ``wanted``, and what is here is ``digest``. Bring it.

    Answered with the digest that is here where that turns out to be right, else with nothing.
    """

    host: ProcAddress
    generation: int
    digest: str
    wanted: str
    num_running: int


class FilesNow(msgspec.Struct):
    """What a host has then."""

    generation: int
    digest: str


class Share(Request[FilesNow], tag=52):
    """To a host agent whose folder another host writes: look whether it has come to this state.

    Payload: paths and digests of what has changed.
    """

    generation: int
    digest: str
    folders: tuple[str, ...]


class TakeBack(Request[FilesNow], tag=50):
    """To a host agent: back to the files before ``generation``, if that is what is there.

    An owner orders it on behalf of the push's ``author``: another author may have staged since.
    """

    generation: int
    author: Uid = ""


class AuditAsked(Request[Body], tag=179):
    """To a process: what runs old code there, and in those that it owns, since the switch to
    ``generation``? ``Answer`` comes when its audit is in."""

    generation: int


class SwitchOrder(str, Enum):
    """The kinds of orders: of a coordinator to participants, of an author to an owner (``PREPARE``,
    ``SWITCH``, ``REVERT``), and (the last three, in messages of their own) of either to hosts."""

    PREPARE = "prepare"
    FENCE = "fence"
    LIFT = "lift"
    HALT = "halt"
    RESUME = "resume"
    PATCH = "patch"
    GO = "go"
    REVERT = "revert"
    SWITCH = "switch"
    SHOW_FILES = "show files"
    TAKE_BACK_FILES = "take files back"
    DROP_FILES = "drop files"


class Order(Request[Body], tag=44):
    """An order of the switch to ``generation``, to an owner or a proc. The tables in
    ``monarch.core.code_switch`` say what follows which.

    ``PREPARE``: get the generation ready; payload: the plan. ``FENCE``: the generation begins here;
    ordered like a call, and answered once every actor is done with what came before, while later
    messages wait. ``LIFT``: as before the fence of this ``attempt``. ``HALT``: actors take up no
    message. ``RESUME``: as before the halt. ``PATCH``: change the code. ``GO``: run it. ``REVERT``:
    drop the generation; an owner that drives its switch stops, unless it is decided. ``SWITCH``: an
    owner drives the whole switch of its procs, and answers when that is over.

    ``attempt`` counts the fences. ``seconds`` is how long a fence may hold a sender up (for ever,
    if ``None``), how long to wait until all have come past a lifted one, or how long a halt may
    take. ``behind`` are hosts that could not show the files: procs there go back at a patch. A proc
    that ``gives_way`` does so to a new one of its uid: what comes after its fence is for that one.
    ``pid`` is that of an author elsewhere, whose end must be noticed.
    """

    kind: SwitchOrder
    generation: int
    attempt: int = 0
    seconds: float | None = 0.0
    behind: tuple[Uid, ...] = ()
    gives_way: bool = False
    pid: int = 0

    @property
    def is_fence(self) -> bool:
        """Whether it has its place among the calls of its sender."""
        return self.kind is SwitchOrder.FENCE

    @property
    def ends_fence(self) -> bool:
        """Whether a process is told to go on as before the last fence."""
        return self.kind in (SwitchOrder.LIFT, SwitchOrder.REVERT)

    @property
    def is_behind_fence(self) -> bool:
        """Whether a proc that gives way at the last fence obeys it yet, ahead of the new one."""
        return self.kind in (
            SwitchOrder.HALT, SwitchOrder.RESUME, SwitchOrder.PATCH, SwitchOrder.GO,
        )  # fmt: skip


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
    """To the process that ordered a fence: an actor waits behind it, and is held up."""

    generation: int
    attempt: int


class LeftBehind(Message, tag=54):
    """To a proc on a host that could not follow a push: what runs where now, as its owner knows."""

    codes: tuple[HostCode, ...]
