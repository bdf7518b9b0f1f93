"""Every message of the protocol, in one table; the files are the conversations they belong to.

A message is added to the file of its conversation, and to the table in this file.

What to open:

    header        what all messages begin with
    calls         actors, calls, answers, deadlock detection (edge chasing), requests to owners of
                  memory
    delivery      broadcast trees, and bulk
    lives         membership: which processes there are, and which have ended
    hosts         attachment, procs that a host makes and ends, their output
    generations   pushes of a workspace, and the switch of code
    programs      programs that a host runs for a person, and forwarded ports
    observe       held calls, stacks, environment
    telemetry     state, events and profiles of processes
"""

from monarch.wire.message.calls import (
    PING,
    ActorFailed,
    Ancestor,
    AskMemory,
    AskOrigin,
    AskWait,
    Call,
    Chase,
    PortMark,
    Reply,
    Returned,
    RingFound,
    SpawnActor,
    StopActor,
    Waiter,
)
from monarch.wire.message.delivery import (
    BulkChunk,
    Cast,
    Consignment,
    Credit,
    FoldedReply,
    Grow,
    Parcel,
    Replies,
    Retire,
    Unmapped,
    Wither,
)
from monarch.wire.message.generations import (
    AuditAsked,
    Bring,
    BusyActor,
    HeldUp,
    LeftBehind,
    Onward,
    Order,
    Share,
    SwitchOrder,
    Sync,
    TakeBack,
    Waiting,
)
from monarch.wire.message.header import (
    PROTOCOL_VERSION,
    Answer,
    Message,
)
from monarch.wire.message.hosts import (
    Attach,
    Command,
    Detach,
    DropMemory,
    FindMemory,
    FlushLogs,
    Inspect,
    KeepMemory,
    Listen,
    Log,
    LogOptions,
    LogRoom,
    LogWindow,
    Notice,
    Post,
    Preload,
    ProcSpec,
    ReplaceProcs,
    SetLogLevel,
    Shutdown,
    SpawnProcs,
    StopProcs,
    StopSelf,
)
from monarch.wire.message.lives import (
    Heartbeat,
    Hello,
    Imported,
    Introduce,
    ProcAgain,
    ProcDown,
    ProcsDown,
    ProcUp,
    Watch,
    WatchHost,
)
from monarch.wire.message.observe import (
    AbortGroups,
    BreakPlace,
    ClocksStand,
    DapBytes,
    DapOpened,
    EnvAsked,
    EnvSet,
    HoldLine,
    HoldNames,
    HoldsAsked,
    HoldsChanged,
    HoldText,
    PeekLine,
    SourceAsked,
    StacksAsked,
    StopAt,
)
from monarch.wire.message.programs import (
    IdleLimit,
    LeaveProgram,
    OpenPort,
    ProgramEnded,
    ResizeTerminal,
    RunProgram,
    SignalProgram,
    StreamData,
    StreamEnd,
    StreamRoom,
    ViewProgram,
)
from monarch.wire.message.telemetry import (
    AskClock,
    DrainHost,
    DrainProc,
    HeldAsked,
    KeepRows,
    LastRows,
    LookAtHost,
    LookAtProc,
    ProfileProc,
    PySpyAsked,
)

__all__ = [
    "PING",
    "PROTOCOL_VERSION",
    "AbortGroups",
    "ActorFailed",
    "Ancestor",
    "Answer",
    "AnyMessage",
    "AskClock",
    "AskMemory",
    "AskOrigin",
    "AskWait",
    "Attach",
    "AuditAsked",
    "BreakPlace",
    "Bring",
    "BulkChunk",
    "BusyActor",
    "Call",
    "Cast",
    "Chase",
    "ClocksStand",
    "Command",
    "Consignment",
    "Credit",
    "DapBytes",
    "DapOpened",
    "Detach",
    "DrainHost",
    "DrainProc",
    "DropMemory",
    "EnvAsked",
    "EnvSet",
    "FindMemory",
    "FlushLogs",
    "FoldedReply",
    "Grow",
    "Heartbeat",
    "HeldAsked",
    "HeldUp",
    "Hello",
    "HoldLine",
    "HoldNames",
    "HoldText",
    "HoldsAsked",
    "HoldsChanged",
    "IdleLimit",
    "Imported",
    "Inspect",
    "Introduce",
    "KeepMemory",
    "KeepRows",
    "LastRows",
    "LeaveProgram",
    "LeftBehind",
    "Listen",
    "Log",
    "LogOptions",
    "LogRoom",
    "LogWindow",
    "LookAtHost",
    "LookAtProc",
    "Message",
    "Notice",
    "Onward",
    "OpenPort",
    "Order",
    "Parcel",
    "PeekLine",
    "PortMark",
    "Post",
    "Preload",
    "ProcAgain",
    "ProcDown",
    "ProcSpec",
    "ProcUp",
    "ProcsDown",
    "ProfileProc",
    "ProgramEnded",
    "PySpyAsked",
    "ReplaceProcs",
    "Replies",
    "Reply",
    "ResizeTerminal",
    "Retire",
    "Returned",
    "RingFound",
    "RunProgram",
    "SetLogLevel",
    "Share",
    "Shutdown",
    "SignalProgram",
    "SourceAsked",
    "SpawnActor",
    "SpawnProcs",
    "StacksAsked",
    "StopActor",
    "StopAt",
    "StopProcs",
    "StopSelf",
    "StreamData",
    "StreamEnd",
    "StreamRoom",
    "SwitchOrder",
    "Sync",
    "TakeBack",
    "Unmapped",
    "ViewProgram",
    "Waiter",
    "Waiting",
    "Watch",
    "WatchHost",
    "Wither",
]  # fmt: skip

AnyMessage = (
    Answer
    | Call | Reply | Returned | PortMark
    | Hello | Introduce | Heartbeat | Watch | WatchHost | ProcUp | Imported | ProcDown | ProcsDown
    | ProcAgain
    | Parcel | Consignment | BulkChunk | Credit | Retire | Unmapped
    | Attach | Detach | Notice | Inspect | Post | Listen | KeepMemory | FindMemory | DropMemory
    | Shutdown
    | Preload | SpawnProcs | StopProcs | ReplaceProcs | StopSelf
    | Log | LogRoom | LogOptions | LogWindow | FlushLogs | SetLogLevel
    | SpawnActor | StopActor | ActorFailed | AskOrigin
    | Sync | Bring | Share | TakeBack | Order | Waiting | HeldUp
    | LeftBehind | AuditAsked
    | Grow | Cast | Replies | Wither
    | AskWait | Chase | RingFound | AskMemory
    | HoldsChanged | HoldsAsked | HoldLine | HoldText | HoldNames | ClocksStand
    | StacksAsked | PeekLine | StopAt | BreakPlace | EnvAsked | EnvSet | DapOpened | DapBytes
    | AbortGroups | SourceAsked
    | RunProgram | ViewProgram | LeaveProgram | SignalProgram | ResizeTerminal | ProgramEnded
    | OpenPort | StreamData | StreamRoom | StreamEnd
    | IdleLimit
    | AskClock | LookAtProc | LookAtHost | DrainProc | DrainHost | KeepRows | LastRows
    | ProfileProc | PySpyAsked | HeldAsked
)  # fmt: skip
