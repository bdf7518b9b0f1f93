"""A client and a host agent: attachment, the procs that it makes and ends, and their output."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.host_code import HostCode
from monarch.wire.message.header import Message, Request


class Attached(msgspec.Struct):
    """The state of a host for its new client.

    If the host is refused with an error because another client has it, ``holder`` names that
    client.
    """

    machine: str = ""
    pid: int = 0
    host: str = ""
    workspace: str = ""
    generation: int = 0
    digest: str = ""
    holder: str = ""


class Attach(Request[Attached], tag=20):
    """To a host agent: the sender asks to become its client."""

    client: ProcAddress
    pid: int
    name: str
    takeover: bool = False

    @property
    def asker(self) -> ProcAddress:
        return self.client


class Detach(Message, tag=21):
    """The client leaves: stop its procs."""

    client: Uid


class Notice(Message, tag=31):
    """From a host agent to its client: news that a person should know."""

    text: str


class ProcState(msgspec.Struct):
    """A proc, as its host knows it."""

    uid: Uid
    #: The proc's own name, for people.
    label: str
    #: The name and the uid of its mesh.
    name: str
    mesh: Uid
    rank: int
    pid: int
    #: Whether it listens for messages.
    is_up: bool
    #: Why it hangs, in words; "" if it does not.
    hangs: str = ""
    #: None until it is up.
    address: ProcAddress | None = None
    #: The dimensions of its mesh.
    labels: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    #: How many processes of this uid there were before it.
    life: int = 0


class HostPackages(msgspec.Struct):
    """A host's Python, the versions of its installed packages, and the platforms whose wheels it
    takes. ``python`` is "" if it is not known."""

    python: str = ""
    packages: dict[str, str] = {}
    platforms: tuple[str, ...] = ()


class HostState(msgspec.Struct, kw_only=True):
    """A host, as its agent knows it."""

    #: The host's name, for people.
    host: str
    #: The process of the agent.
    pid: int
    machine: str
    uid: Uid
    #: The folder that pushes go to, and the state folder of its replica; "" if there is none.
    workspace: str = ""
    state: str = ""
    #: The state of the workspace there.
    generation: int = 0
    digest: str = ""
    #: How many bytes are staged for a later commit.
    staged_bytes: int = 0
    #: The id of the replica's folder, which is the same on all hosts that see it.
    replica: str = ""
    #: Whether this host writes that folder.
    writes: bool = False
    #: The folder of the procs' log files.
    logs: str = ""
    bulletins: tuple[Bulletin, ...] = ()
    procs: tuple[ProcState, ...] = ()
    #: The program that the host serves, and its address; None if it serves none.
    client: str = ""
    client_address: ProcAddress | None = None
    #: The programs that run there for people.
    programs: tuple[dict[str, Any], ...] = ()
    #: After how many seconds without use the host ends; None for never.
    idle_limit: float | None = None
    idle_seconds: float = 0.0
    #: None unless it was asked for.
    packages: HostPackages | None = None


class Inspect(Request[HostState], tag=27):
    """Ask a host agent for its state; with ``packages``, also for its Python and installed
    packages."""

    packages: bool = False


class ProcReport(msgspec.Struct):
    """A process that runs actors: the ``generation`` of its code, why it is ``spoiled``, and its
    ``$WORKSPACE_DIR``."""

    generation: int
    spoiled: str = ""
    workspace: str = ""


class InspectProc(Request[ProcReport], tag=37):
    """Ask a proc, or a client, which code it runs. A proc that is still starting answers when it is
    up."""


class Shutdown(Request[None], tag=26):
    """End the host agent and all that it runs."""


class Command(msgspec.Struct, array_like=True, frozen=True):
    """How to start a template process; ``None`` in ``env`` takes a variable out."""

    program: str
    arg0: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str | None] = {}
    inherit_env: bool = True


class ProcSpec(msgspec.Struct, array_like=True, frozen=True):
    """One proc to make. ``bind`` says which CPUs and memory it may use."""

    uid: Uid
    rank: int
    env: dict[str, str] = {}
    bind: dict[str, str] = {}
    command: Command | None = None


class Preload(Request[None], tag=25):
    """Keep a template process ready for later spawns, which has imported these modules."""

    modules: tuple[str, ...]


class SpawnProcs(Message, tag=22, kw_only=True):
    """Make procs for a mesh. Each sends ``ProcUp`` to the owner, or ``ProcDown`` is sent for it.

    Payload: code that each proc runs before anything else, if any.
    """

    mesh: Uid
    name: str
    #: The process that spawns them, and the actor in it.
    owner: ProcAddress
    owner_actor: Uid
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    procs: tuple[ProcSpec, ...]
    #: Modules that the template imports before it makes procs.
    preload: tuple[str, ...] = ()
    #: The author's import folders; a name need not be UTF-8.
    path: tuple[bytes, ...] = ()
    #: The client.
    root: ProcAddress | None = None
    #: Starts the template of the procs, and of procs that they spawn on this host.
    command: Command | None = None
    #: Whether procs send ``ProcUp`` to the host agent only, because the owner sends through it.
    is_quiet: bool = False
    #: Settings of the client.
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    #: The generation that the owner runs.
    generation: int = 0
    #: Names the state of the workspace that the procs must run.
    digest: str = ""
    #: The states of hosts that belong together but run different ones.
    codes: tuple[HostCode, ...] = ()


class StopProcs(Request[None], tag=23):
    """Stop these procs: ask them to end, and kill them after ``grace_seconds``."""

    uids: tuple[Uid, ...]
    reason: str
    grace_seconds: float


class ReplaceProcs(Request[None], tag=81):
    """End these procs, as ``StopProcs`` does, and make new ones in their places.

    The new procs have the same uids, ranks and environments; ``codes`` is as in ``SpawnProcs``.
    Answered once they are up.
    """

    uids: tuple[Uid, ...]
    reason: str
    grace_seconds: float
    codes: tuple[HostCode, ...] = ()


class StopSelf(Message, tag=43):
    """To a proc: run the actors' cleanups, and end."""

    reason: str


class Post(Message, tag=32):
    """To a host agent: a bulletin for the listeners there; see ``Bulletin``.

    It replaces the earlier bulletin with the same ``key``.
    """

    bulletin: Bulletin
    sender: Uid


class Heard(msgspec.Struct):
    """News of the host, in answer to `Listen`; the oldest is first, the last has this
    ``number``.
    """

    number: int
    bulletins: tuple[Bulletin, ...] = ()


class Listen(Request[Heard], tag=33):
    """Ask for the bulletins after ``number``; with 0, for the bulletins that still apply.

    Answered at once if there are any, else when one arrives, or after ``seconds``. It also confirms
    that the bulletins up to ``number`` have been heard: a host that is about to end waits for that.
    With ``port`` 0 it asks nothing: the sender stops listening.
    """

    number: int
    seconds: float


class KeepMemory(Request[None], tag=34):
    """From a proc to its host agent: keep this memory (a memfd of the proc) open, so that it
    outlives the proc.

    ``owner`` names what the memory belongs to, such as a run, and ``name`` the rank. Memory that
    was kept before for the same owner and name is replaced.
    """

    owner: str
    name: str
    fd: int


class MemoryFound(msgspec.Struct):
    """Memory that the process ``pid`` keeps open.

    By name: its file descriptors ``fds``, its ``sizes`` in bytes, and its ``marks``, which are the
    numbers that each memory begins with.
    """

    pid: int
    fds: dict[str, int]
    sizes: dict[str, int]
    marks: dict[str, tuple[int, ...]]


class FindMemory(Request[MemoryFound], tag=35):
    """To a host agent: which memory of this owner is kept?"""

    owner: str


class DropMemory(Request[None], tag=36):
    """To a host agent: release all memory of this owner."""

    owner: str


class Log(Message, tag=24, kw_only=True):
    """Lines that a proc printed. Payload: the lines, as UTF-8 if the proc kept to it.

    ``label`` is printed in front of each line; ``path`` is the proc's log file on the machine
    ``host_name``, which also has the ``num_dropped`` lines before them that were not sent. Answered
    by ``LogRoom``.
    """

    uid: Uid
    label: str
    stream: int
    host: Uid
    num_dropped: int = 0
    path: str = ""
    host_name: str = ""


class LogRoom(Message, tag=30):
    """To a host agent: ``num_bytes`` bytes of lines were printed, so as many more may be sent."""

    num_bytes: int


class LogOptions(Request[None], tag=70, kw_only=True):
    """To a host agent, which tells its client: whether and how to show what procs print.

    Without ``uids``: all procs of the host, later ones too. Procs of one ``group`` are aggregated
    together, see ``LogWindow``. ``level`` is for later procs.
    """

    uids: tuple[Uid, ...]
    group: Uid
    stream_to_client: bool
    window_seconds: float
    level: int


class LogWindow(Message, tag=73):
    """To a client: aggregate the lines of these procs over ``window_seconds``; 0 for no
    aggregation."""

    uids: tuple[Uid, ...]
    group: Uid
    window_seconds: float


class FlushLogs(Request[None], tag=72):
    """To a host agent: answer once all lines printed so far have been sent."""


class SetLogLevel(Request[None], tag=71):
    """To a proc: set the level of its root logger."""

    level: int
