"""The output of procs, on its way to the client."""

from __future__ import annotations

from monarch.wire.address import Uid
from monarch.wire.message.header import Message


class Log(Message, tag=24, kw_only=True):
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


class LogOptions(Message, tag=70, kw_only=True):
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


class LogWindow(Message, tag=73):
    """To a client: aggregate what these procs print over ``window_seconds``; 0 for not at all."""

    uids: tuple[Uid, ...]
    group: Uid
    window_seconds: float


class FlushLogs(Message, tag=72):
    """To a host agent: answer once everything printed so far has been sent."""

    port: int
    sender: Uid


class SetLogLevel(Message, tag=71):
    """To a proc: the level of its root logger."""

    level: int
    port: int
    sender: Uid
