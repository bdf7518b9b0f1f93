"""Programs that a host runs for a person, forwarded ports, and editors' sessions.

They are streams of bytes, with a uid that the client has chosen. A sender may have at most a window
of bytes under way; the receiver reports how many it has taken.
"""

from __future__ import annotations

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message.header import Message, Request


class ProgramBegun(msgspec.Struct):
    """The answer to a request to run or view a program, or to open a port.

    It names the host agent's process, whose end the client must notice, and the folder that the
    program runs in.
    """

    pid: int
    machine: str
    host: str
    directory: str = ""


class RunProgram(Request[ProgramBegun], tag=140, kw_only=True):
    """To a host agent: run a program, in a session of its own.

    Payload: a script, which becomes a file whose path follows ``arguments``.
    """

    uid: Uid
    #: The program ends when this process, ``pid``, ends, unless it ``is_kept``.
    owner: ProcAddress
    pid: int
    arguments: tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    #: Where it runs; "" is the workspace.
    directory: str = ""
    #: The size of its terminal; 0 for no terminal.
    rows: int = 0
    columns: int = 0
    has_script: bool = False
    #: Whether the host's Python interpreter runs the arguments.
    is_python: bool = False
    #: Whether it continues after its owner's end. ``title`` then describes it.
    is_kept: bool = False
    title: str = ""


class ViewProgram(Request[ProgramBegun], tag=141):
    """To a host agent: show a kept program, beginning with its latest output."""

    uid: Uid
    viewer: ProcAddress
    pid: int
    rows: int
    columns: int


class LeaveProgram(Message, tag=142):
    """To a host agent: stop viewing a program; it ends, unless it is kept."""

    uid: Uid
    viewer: Uid


class SignalProgram(Message, tag=143):
    """To a host agent: send a signal to the program and all that it has started; 9 ends all of
    it."""

    uid: Uid
    number: int


class ResizeTerminal(Message, tag=144):
    """To a host agent: the person's terminal has a new size."""

    uid: Uid
    rows: int
    columns: int


class ProgramEnded(Message, tag=145):
    """To a client: the program has ended, with a ``status`` as shells count it.

    ``reason`` is "", or says why the status is not the program's own.
    """

    uid: Uid
    status: int
    reason: str = ""


class OpenPort(Request[ProgramBegun], tag=146):
    """To a host agent: connect to ``port_number`` of ``host``, as the agent's machine resolves it.

    Answered once it is connected.
    """

    uid: Uid
    owner: ProcAddress
    pid: int
    host: str
    port_number: int


class StreamData(Message, tag=147):
    """Bytes of a stream, as payload. ``stream``: 0 to the host, 1 and 2 from the host."""

    uid: Uid
    stream: int


class StreamRoom(Message, tag=148):
    """``num_bytes`` bytes of the stream were taken, so as many more may be sent."""

    uid: Uid
    stream: int
    num_bytes: int
    sender: Uid = ""


class StreamEnd(Message, tag=149):
    """There will be no more bytes of the stream; if ``is_both``, the sender takes none of the other
    direction either."""

    uid: Uid
    stream: int
    is_both: bool = False


class IdleLimit(Request[None], tag=150):
    """To a host agent: end, together with ``others``, when none of these hosts was used for
    ``seconds``.

    0 means never.
    """

    seconds: float
    others: tuple[ProcAddress, ...]
