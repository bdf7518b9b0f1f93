"""Every message of the protocol, in one table.

A message is a header (one of these structs), and, for those that carry user data, a payload
with buffers beside it. Headers hold only what agents need to route, order and account; they
never hold pickles. Validity is checked where a header is decoded, and trusted afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.errors import MeshFailure
from monarch.wire.address import ProcAddress, Uid

PROTOCOL_VERSION = 1

PING = ""
"""The method that every actor has: it answers once ``__init__`` has returned."""


class Message(msgspec.Struct, array_like=True):
    """Base of all headers."""


# Between any two processes.


class Hello(Message, tag=1):
    """First on every connection: who speaks, and where to answer.

    It keeps this shape in all versions of the protocol, so that two that differ can say so.
    ``is_refusal``: it answers one of another version, and nothing will follow it.
    """

    proc: ProcAddress
    version: int
    is_refusal: bool = False


class Call(Message, tag=2):
    """Run an endpoint. Payload: the arguments. ``port`` 0 means that nobody waits.

    ``generation`` is what the sender runs, counted by the client ``root``: who is behind it must
    not run this. Once the call is taken up, it is the generation that runs it.
    """

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
    generation: int = 0
    root: Uid = ""


class Reply(Message, tag=3):
    """Into a port. Payload: a value, or an exception where ``failed``.

    ``refused``: the actor is dead, so that a call to it and others need wait for nobody.
    ``generation`` is the one whose code has made this answer.
    """

    port: int
    rank: int
    sender: Uid
    failed: bool = False
    refused: bool = False
    generation: int = 0


class Watch(Message, tag=4):
    """Tell me when this proc is up, and when it is down. To its host agent."""

    uid: Uid
    watcher: ProcAddress


class ProcUp(Message, tag=5):
    """A proc listens and may be sent to."""

    proc: ProcAddress
    pid: int


class ProcDown(Message, tag=6):
    """A proc has ended, or never came up. ``expected`` where somebody asked for it.

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


class WatchHost(Message, tag=9):
    """From a proc to its own host agent: tell me when that other host agent is lost."""

    host: ProcAddress
    watcher: ProcAddress


class Returned(Message, tag=10):
    """To the sender of a message that nobody waits for: it could not be delivered."""

    actor: Uid
    target: str
    method: str
    reason: str


class Heartbeat(Message, tag=7):
    """I am alive, and expect the same of you."""

    sender: Uid


# Bulk that travels apart from its message. Payload: the header of the message it belongs to;
# buffer: the payload of that message, where it is not among the bulk. ``sizes`` are those of the
# pieces: the payload first, if it is one of them, then the buffers.


class Parcel(Message, tag=12):
    """A message whose bulk lies in a segment of shared memory, handed over before.

    ``is_shared``: others look at the same region, so that nobody may write to it.
    """

    sender: Uid
    segment: int
    offset: int
    hold: int
    is_shared: bool
    has_payload: bool
    sizes: tuple[int, ...]


class Consignment(Message, tag=13):
    """A message whose bulk follows in chunks, as the receiver asks for them."""

    sender: Uid
    number: int
    has_payload: bool
    sizes: tuple[int, ...]


class Chunk(Message, tag=14):
    """The next bytes of a consignment, as buffers."""

    sender: Uid
    number: int


class Credit(Message, tag=15):
    """Send me so many more chunks of that consignment; 0: I will not take it."""

    sender: Uid
    number: int
    num_chunks: int


class Retire(Message, tag=16):
    """These segments of mine are not used any longer: unmap them."""

    sender: Uid
    segments: tuple[int, ...]


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


class Command(msgspec.Struct, array_like=True, frozen=True):
    """How to start a template process; ``None`` in ``env`` takes a variable out."""

    program: str
    arg0: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str | None] = {}
    inherit_env: bool = True


class ProcSpec(msgspec.Struct, array_like=True, frozen=True):
    """One proc to be made. ``bind`` says which CPUs and memory it may use."""

    uid: Uid
    rank: int
    env: dict[str, str] = {}
    bind: dict[str, str] = {}
    command: Command | None = None


class SpawnProcs(Message, tag=22):
    """Make procs for a mesh. Each answers with ``ProcUp`` to the owner, or ``ProcDown`` comes.

    Payload: what each runs before anything else, if there is something. ``root`` is the client;
    ``command`` starts their template, and that of what they spawn on this host in turn.
    ``is_quiet``: with ``ProcUp`` to the host agent only, because the owner sends through it.
    ``digest`` names the workspace that they are to run, ``generation`` what the owner runs.
    """

    mesh: Uid
    name: str
    owner: ProcAddress
    owner_actor: Uid
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    procs: tuple[ProcSpec, ...]
    preload: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    root: ProcAddress | None = None
    command: Command | None = None
    is_quiet: bool = False
    config: dict[str, Any] = {}
    generation: int = 0
    digest: str = ""


class StopProcs(Message, tag=23):
    """Stop these procs: ask first, kill after ``grace_seconds``."""

    uids: tuple[Uid, ...]
    reason: str
    grace_seconds: float
    port: int
    sender: Uid


class Log(Message, tag=24):
    """Lines that a proc printed. Payload: the lines, as UTF-8 if the proc kept to it.

    ``label`` is what to put in front of each; ``path`` is the proc's log file on the machine
    ``host_name``, where the ``num_dropped`` lines before them stand, which are missing here.
    Answered by ``LogRoom``.
    """

    uid: Uid
    label: str
    stream: int
    host: Uid
    num_dropped: int = 0
    path: str = ""
    host_name: str = ""


class LogRoom(Message, tag=30):
    """To a host agent: so many bytes of lines were printed, and as many may follow."""

    num_bytes: int


class LogOptions(Message, tag=70):
    """Whether and how what procs print is shown. To a host agent, which tells its client.

    No ``uids``: all procs of the host, later ones too. Procs of one ``group`` are aggregated
    together, see ``LogWindow``. ``level`` is for later procs.
    """

    uids: tuple[Uid, ...]
    group: Uid
    stream_to_client: bool
    window_seconds: float
    level: int
    port: int
    sender: Uid


class SetLogLevel(Message, tag=71):
    """To a proc: the level of its root logger."""

    level: int
    port: int
    sender: Uid


class LogWindow(Message, tag=73):
    """To a client: aggregate what these procs print over ``window_seconds``; 0 for not at all."""

    uids: tuple[Uid, ...]
    group: Uid
    window_seconds: float


class FlushLogs(Message, tag=72):
    """To a host agent: answer once everything printed so far has been sent."""

    port: int
    sender: Uid


class Notice(Message, tag=31):
    """From a host agent to its client: something that a person should know."""

    text: str


class Preload(Message, tag=25):
    """Have a template process with these modules imported ready for later spawns."""

    modules: tuple[str, ...]
    port: int
    sender: Uid


class ReplaceProcs(Message, tag=81):
    """End these procs, as ``StopProcs`` does, and make new ones in their places.

    Those have the same uids, ranks and surroundings. Answered once they are up.
    """

    uids: tuple[Uid, ...]
    reason: str
    grace_seconds: float
    port: int
    sender: Uid


class ProcAgain(Message, tag=82):
    """A proc has given way to a new one of its uid, for which ``ProcUp`` follows.

    ``is_clean``: it answered all that it had got before it ended.
    """

    uid: Uid
    name: str
    reason: str
    is_clean: bool = True


class Shutdown(Message, tag=26):
    """End the host agent and all that it runs."""

    port: int
    sender: Uid


class Inspect(Message, tag=27):
    """What runs here? Answered by ``Answer`` with a dictionary.

    ``packages``: a host is to say as well which Python it has, and which packages.
    """

    port: int
    sender: Uid
    packages: bool = False


class Onward(msgspec.Struct, array_like=True, frozen=True):
    """A host that is to be passed a message, and the sender's port for its answer."""

    host: ProcAddress
    port: int


class Sync(Message, tag=28):
    """One message of a workspace push, opaque here; its blobs travel as buffers.

    ``folders`` are the landing places of the workspace's folders below the replica's root, and
    ``pid`` is the author's, whose end is to be noticed. The host passes it to ``onward``, in
    ``degree`` shares.
    """

    port: int
    sender: Uid
    folders: tuple[str, ...] = ()
    pid: int = 0
    onward: tuple[Onward, ...] = ()
    degree: int = 1


class Answer(Message, tag=29):
    """To a control message. ``body`` is data, ``error`` is text for people, never a pickle."""

    port: int
    sender: Uid
    body: dict[str, Any] = {}
    error: str = ""


# An owner and a proc.


class Ancestor(msgspec.Struct, array_like=True, frozen=True):
    """An actor that spawned one, or spawned one that did."""

    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]


class SpawnActor(Message, tag=40):
    """Make an actor. Payload: class and constructor arguments.

    ``ancestors``: who spawned it, from below the client down.
    """

    actor: Uid
    name: str
    class_name: str
    rank: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: ProcAddress
    owner_actor: Uid
    is_async: bool
    ancestors: tuple[Ancestor, ...] = ()


class AskOrigin(Message, tag=48):
    """To an owner: which procs was this actor spawned on? Answered by ``Reply``, pickled."""

    actor: Uid
    port: int
    sender: Uid


class StopActor(Message, tag=41):
    """End an actor after the messages before this one."""

    actor: Uid
    reason: str
    port: int
    sender: Uid


class ActorFailed(Message, tag=42):
    """To the owner: an actor has failed, and nobody was waiting for its answer.

    ``cause`` is the failure of something it owned, where that is why.
    """

    actor: Uid
    rank: int
    name: str
    proc: Uid
    reason: str
    cause: MeshFailure | None = None


class StopSelf(Message, tag=43):
    """To a proc: run the actors' cleanups and end."""

    reason: str


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


class Switch(Message, tag=45):
    """To an owner or a proc: the generation begins here. Ordered like a call.

    Answered once every actor is done with what came before; what comes after it waits. ``holds``:
    the proc gives way to a new one of its uid, and what is sent to it after this is for that one.
    ``attempt`` counts how often it was cast: one that was given up says nothing any more. An owner
    gives it up ``seconds`` after it has begun to hold somebody up, which it does already where
    ``is_held``.
    """

    generation: int
    port: int
    sender: Uid
    holds: bool = False
    attempt: int = 1
    seconds: float = 0.0
    is_held: bool = False


class Revert(Message, tag=46):
    """To an owner or a proc: drop a generation that was prepared or switched to."""

    generation: int
    port: int
    sender: Uid


class Step(Message, tag=47):
    """To an owner or a proc that stands at a ``Switch``: the next step of it.

    ``name`` is "halt" (nobody takes up anything, within ``seconds``), "resume" (as before the
    halt), "lift" (as before the ``Switch`` of this ``attempt``, which is given up), "patch" (change
    the code; what runs on hosts that are ``behind`` goes back instead) or "go" (run it).
    """

    generation: int
    name: str
    seconds: float
    port: int
    sender: Uid
    attempt: int = 0
    behind: tuple[Uid, ...] = ()


class Waiting(Message, tag=49):
    """To who asked for a change of generation: what it waits for, in words."""

    generation: int
    text: str


class HeldUp(Message, tag=53):
    """To who asked for a ``Switch``: it holds somebody up, who waits behind it."""

    generation: int
    attempt: int


class TakeBack(Message, tag=50):
    """To a host agent: back to the files before ``generation``, if that is what is there."""

    generation: int
    port: int
    sender: Uid


class Bring(Message, tag=51):
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
    """To a host agent whose folder somebody else writes: look whether it has come to this state.

    Payload: paths and digests of what has changed.
    """

    generation: int
    digest: str
    folders: tuple[str, ...]
    port: int
    sender: Uid


class PortMark(Message, tag=60):
    """Into a channel: reply to port ``answer_port`` once what came before it is taken."""

    port: int
    answer_port: int
    sender: Uid


# A sender and the host agents of a tree: see core.fanout.


class Grow(Message, tag=61):
    """What a host agent needs to hand on the casts of ``sender``: the hosts from ``start`` on.

    Sent ahead of the first cast, and again when a host of the tree has died.
    """

    mesh: Uid
    sender: ProcAddress
    start: int
    hosts: tuple[ProcAddress, ...]
    per_host: int
    degree: int
    dead: tuple[int, ...] = ()


class Cast(Message, tag=62):
    """One message for members of a proc mesh on the hosts ``start`` to ``stop``.

    ``inner`` is its header. Answers to ``port`` are gathered on the way back, by way of
    ``parent``. Among the casts of one sender along one tree ``number`` only grows.
    """

    mesh: Uid
    sender: Uid
    number: int
    start: int
    stop: int
    dead: tuple[int, ...]
    members: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    inner: bytes
    parent: ProcAddress | None = None
    port: int = 0


class FoldedReply(msgspec.Struct, array_like=True, frozen=True):
    """One answer among many; its payload and buffers follow those of the one before."""

    rank: int
    sender: Uid
    failed: bool
    refused: bool
    num_buffers: int
    generation: int = 0


class Replies(Message, tag=63):
    """Answers of several ranks, gathered on the way by host agent ``sender``."""

    port: int
    sender: Uid
    items: tuple[FoldedReply, ...]


class Introduce(Message, tag=64):
    """Where a process is that speaks to you through others."""

    proc: ProcAddress


AnyMessage = (
    Hello | Call | Reply | Watch | ProcUp | ProcDown | ProcsDown | Heartbeat | WatchHost | Returned
    | Attach | Detach | SpawnProcs | StopProcs | Log | LogRoom | LogOptions | SetLogLevel
    | LogWindow | FlushLogs | Notice | Preload | Shutdown | Inspect | Sync | Answer | SpawnActor
    | AskOrigin | StopActor | ActorFailed | StopSelf | Prepare | Switch | Step | Revert
    | PortMark | Waiting | HeldUp | TakeBack | Bring | Share
    | Grow | Cast | Replies | Introduce | Parcel | Consignment | Chunk | Credit | Retire
    | ReplaceProcs | ProcAgain
)  # fmt: skip
