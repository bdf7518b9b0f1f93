"""How a workspace gets to the hosts, and the code switch that follows."""

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
    """A host's answer to one message of a push. ``reply`` is the encoded answer of its replica.

    If content was staged, it also has the client whose processes must change with the files, and in
    ``packages`` the files of packages that change, each with the path of its new content.
    """

    reply: bytes
    root: str = ""
    host: str = ""
    packages: tuple[tuple[str, str], ...] = ()
    client_address: ProcAddress | None = None
    is_staged: bool = False


class Sync(Request[SyncAnswer], tag=28):
    """One message of a workspace push, which is opaque here; its blobs travel as buffers.

    ``folders`` are the landing places of the workspace's folders below the replica's root. ``pid``
    is the author's process, whose end must be noticed. The host forwards the message to ``onward``,
    in ``degree`` branches. An owner that relays a push of another process names that ``author``.
    """

    folders: tuple[str, ...] = ()
    pid: int = 0
    onward: tuple[Onward, ...] = ()
    degree: int = 1
    author: Uid = ""


class Bring(Request[str], tag=51, kw_only=True):
    """From a host agent to its client: bring the workspace state ``wanted`` to the host.

    New procs need it, and the host has the state ``digest``. The answer is "", or the digest of the
    host's own state if the other hosts turn out to have that state too.
    """

    host: ProcAddress
    generation: int
    digest: str
    wanted: str
    num_running: int


class FilesNow(msgspec.Struct):
    """The state of a host's files after it has carried out a ``Share`` or ``TakeBack``."""

    generation: int
    digest: str


class Share(Request[FilesNow], tag=52):
    """To a host agent whose folder is written by another host: check whether the folder has the
    state of ``generation`` and ``digest``.

    Payload: paths and digests of the changed files.
    """

    generation: int
    digest: str
    folders: tuple[str, ...]


class TakeBack(Request[FilesNow], tag=50):
    """To a host agent: restore the files from before ``generation``, if it shows that generation.

    ``author`` is the author of the push, on whose behalf an owner may order this. Files that
    another author has staged since are kept.
    """

    generation: int
    author: Uid = ""


class AuditAsked(Request[Body], tag=179):
    """To a process: what runs old code in it, and in the procs that it owns, since the switch to
    ``generation``? ``Answer`` is sent when the audit is finished."""

    generation: int


class SwitchOrder(str, Enum):
    """The kinds of orders: of a coordinator to participants, of an author to an owner (``PREPARE``,
    ``SWITCH``, ``REVERT``), and of either to hosts (the last three, which have messages of their
    own)."""

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
    ``monarch.core.code_switch`` have the order of events.

    ``PREPARE``: prepare the generation; payload: the plan. ``FENCE``: the generation begins here;
    it has its place among the sender's calls, and is answered once every actor has finished the
    earlier messages, while later messages wait. ``LIFT``: go on as before the fence of this
    ``attempt``. ``HALT``: actors begin no message. ``RESUME``: go on as before the halt. ``PATCH``:
    change the code. ``GO``: run it. ``REVERT``: drop the generation; an owner that drives its
    switch stops it, unless it is decided. ``SWITCH``: an owner drives the whole switch of its
    procs, and answers when it is over.

    ``attempt`` counts the fences. ``seconds`` is how long a fence may delay a sender (``None``:
    without limit), how long to wait until all have passed a lifted fence, or how long a halt may
    take. ``behind`` are hosts that could not show the files: procs there revert at a patch. A proc
    that ``gives_way`` is replaced by a new one of its uid, which gets the messages after the fence.
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
        """Whether the order has its place among the calls of its sender."""
        return self.kind is SwitchOrder.FENCE

    @property
    def ends_fence(self) -> bool:
        """Whether the order has a process go on as before the last fence."""
        return self.kind in (SwitchOrder.LIFT, SwitchOrder.REVERT)

    @property
    def is_behind_fence(self) -> bool:
        """Whether a proc that will be replaced at its last fence still obeys the order itself.

        Other orders wait for the new proc.
        """
        obeyed = (SwitchOrder.HALT, SwitchOrder.RESUME, SwitchOrder.PATCH, SwitchOrder.GO)
        return self.kind in obeyed


class BusyActor(msgspec.Struct, array_like=True, frozen=True):
    """An actor that a push waits for. ``method`` says what the actor does, in words."""

    name: str
    rank: int
    method: str


class Waiting(Message, tag=49):
    """To the process that ordered a switch: which actors the switch has waited for, and how
    long.
    """

    generation: int
    busy: tuple[BusyActor, ...]
    seconds: float


class HeldUp(Message, tag=53):
    """To the process that ordered a fence: an actor waits behind it, and is delayed."""

    generation: int
    attempt: int


class LeftBehind(Message, tag=54):
    """To a proc on a host that could not follow a push: which code runs on which host now, as its
    owner knows."""

    codes: tuple[HostCode, ...]
